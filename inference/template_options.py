"""Options that a request sets in the model's chat template, such as whether the model reasons before it answers.

Templates have variables for them, under various names. An option for which the template has none is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from inference.frozen import dataclass

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Value: TypeAlias = bool | int | float | str

EFFORT = "reasoning_effort"  # gpt-oss, Mistral
THINKING = ("enable_thinking", "thinking")  # Qwen, GLM, SmolLM; DeepSeek, Granite
VERBOSITY = "verbosity"
NO_OPTIONS: Mapping[str, Value] = {}
WITHOUT_THINKING = frozenset({"none", "minimal"})
# Models were trained on low, medium and high.
NEAREST: Mapping[str, str] = {"minimal": "low", "xhigh": "high", "max": "high"}


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """`variables` are set by name and override what `effort` implies."""

    effort: Effort | None = None
    verbosity: str | None = None
    variables: Mapping[str, Value] = field(default_factory=dict)

    def chosen(self, known: frozenset[str]) -> dict[str, Value]:
        """Values for the variables that the template has (`known`)."""
        wishes: dict[str, Value] = {}
        if self.effort is not None:
            wishes[EFFORT] = NEAREST.get(self.effort, self.effort)
            wishes |= dict.fromkeys(THINKING, self.effort not in WITHOUT_THINKING)
        if self.verbosity is not None:
            wishes[VERBOSITY] = self.verbosity
        return {name: value for name, value in (wishes | dict(self.variables)).items() if name in known}


def have_effort(known: frozenset[str]) -> bool:
    """Whether one of these template variables sets the effort."""
    return not known.isdisjoint({EFFORT, *THINKING})
