"""The plainest chunk of a step, for measurements: nobody waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rows:
    slot: int
    position: int
    tokens: Sequence[int]
    outputs: int = 1
    apart: bool = False
