"""The outline of a prompt: which part of it each token belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What a piece of prompt is there for, in the usual order."""

    SYSTEM = "system"
    TOOLS = "tools"  # their schemas
    HISTORY = "history"  # messages before the question
    PASSAGES = "passages"
    QUESTION = "question"  # the newest user message
    RESULTS = "results"  # what the running turn has called and found out since


@dataclass(frozen=True, slots=True)
class Extent:
    """So many consecutive tokens of a prompt belong to this part."""

    part: Part
    tokens: int
