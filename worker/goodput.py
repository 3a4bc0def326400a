"""Goodput: the share of responses that meet the latency targets of their surface.

Zhong et al. 2024, "DistServe: disaggregating prefill and decoding for goodput-optimized large language model serving".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from worker.runs.record import APART, FAILED

if TYPE_CHECKING:  # the configuration needs the targets, and `--help` nothing of agents
    from agents.surface import Surface

USUAL = "chat=500/100,embedded=500/100,voice=300/50"  # users read about ten tokens a second
OBJECTIVE = 0.95  # the share of turns that should meet their targets
REFUSE, WAIT = "refuse", "wait"  # policies for a request that is expected to be late
_TARGET = re.compile(r"([a-z][a-z0-9_-]{0,31})=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Target:
    """Upper limits in milliseconds: TTFT, and TPOT (time per output token after the first)."""

    ttft_ms: float
    tpot_ms: float

    def __str__(self) -> str:
        told = [("first token", self.ttft_ms), ("pace", self.tpot_ms)]
        return ", ".join(f"{name} {limit:g} ms" for name, limit in told if limit != inf)

    def met(self, ttft_ms: float | None, tpot_ms: float | None) -> bool:
        """A response of one token has no TPOT; one without any token is late."""
        return ttft_ms is not None and ttft_ms <= self.ttft_ms and (tpot_ms is None or tpot_ms <= self.tpot_ms)


NO_TARGET = Target(inf, inf)


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of the surfaces that have one."""

    by_surface: Mapping[str, Target] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Targets:
        """Parse `chat=500/100,voice=300/50`. Raises ValueError with the mistake as its message."""
        found: dict[str, Target] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _TARGET.fullmatch(part)
            if match is None:
                raise ValueError(f"must look like chat=500/100, not {part!r}")
            surface, ttft_ms, tpot_ms = match.groups()
            if surface in found:
                raise ValueError(f"names {surface} twice")
            found[surface] = Target(float(ttft_ms), float(tpot_ms))
        return cls(found)

    def with_those_of(self, surfaces: Mapping[str, Surface]) -> Targets:
        """These targets, overridden by those of a file."""
        own = {}
        for name, each in surfaces.items():
            usual = self.by_surface.get(name, NO_TARGET)
            target = Target(each.first_token_ms or usual.ttft_ms, each.pace_ms or usual.tpot_ms)
            if target != NO_TARGET:
                own[name] = target
        return Targets({**self.by_surface, **own})

    def met(self, surface: str, status: str, ttft_ms: float | None, tpot_ms: float | None) -> bool | None:
        """Whether a turn met its target. None for turns that are not judged: those of surfaces without a target,
        cancelled ones, and invalid requests that no server could answer.
        """
        target = self.by_surface.get(surface)
        if target is None or status in APART:
            return None
        return status not in FAILED and target.met(ttft_ms, tpot_ms)
