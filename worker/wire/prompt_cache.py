"""Options of the prompt cache. Caching is automatic here: what marks a prefix, or says how long it should last, is
accepted without effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from worker.wire.ignored import without_effect
from worker.wire.strict import Id, Strict

USUAL_MODE, USUAL_TTL = "implicit", "30m"  # of the public contract
Ttl: TypeAlias = Literal["30m", "12h"]


class Breakpoint(Strict):
    """Marks the end of a reusable prefix."""

    mode: Literal["explicit"]
    ttl: Ttl | None = None


PromptCacheBreakpoint: TypeAlias = Annotated[Breakpoint | None, without_effect("prompt_cache_breakpoint")]


class PromptCacheOptions(Strict):
    mode: Annotated[Literal["implicit", "explicit"] | None, without_effect("prompt_cache_options.mode", USUAL_MODE)] = (
        None
    )
    ttl: Annotated[Ttl | None, without_effect("prompt_cache_options.ttl", USUAL_TTL)] = None

    def echo(self) -> dict[str, Any]:
        return {"mode": self.mode or USUAL_MODE, "ttl": self.ttl or USUAL_TTL}


class ResponseCacheOptions(PromptCacheOptions):
    prewarm: bool | None = None  # only read the prompt
    comparison_response_id: Id | None = None  # see `worker.runs.cache_diagnostics`

    def echo(self) -> dict[str, Any]:
        compared = {"comparison_response_id": self.comparison_response_id} if self.comparison_response_id else {}
        return {**super().echo(), **compared}
