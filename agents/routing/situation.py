"""The inputs of a route: facts about a turn that are known before its next step is rendered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inference.trace import Attribute


@dataclass(frozen=True, slots=True)
class Cost:
    """The expected duration of a step on a model, and its cost in the operator's unit. `warm`: what precedes the
    question is in its prompt cache."""

    seconds: float
    price: float
    warm: bool = False
    is_loaded: bool = True


@dataclass(frozen=True, slots=True)
class Situation:
    """`guess` returns the language of the question: it is called only by rules that need it."""

    question_chars: int = 0
    prompt_chars: int = 0
    documents: int = 0
    offers_tools: bool = False  # some may still be called
    step: int = 0
    guess: Callable[[], str] = field(default=str, compare=False)
    costs: Mapping[str, Cost] = field(default_factory=dict)  # by model

    @property
    def language(self) -> str:
        return self.guess()

    def cheapest(self, models: tuple[str, ...]) -> str:
        """The first of the cheapest. A model of unknown cost counts as free: it must be tried to be known."""
        return min(models, key=self.price)

    def price(self, model: str) -> float:
        cost = self.costs.get(model)
        return cost.price if cost else 0.0

    @property
    def attributes(self) -> dict[str, Attribute]:
        """For a span."""
        facts: dict[str, Attribute] = {
            "step": self.step,
            "question_chars": self.question_chars,
            "prompt_chars": self.prompt_chars,
            "documents": self.documents,
            "tools": self.offers_tools,
        }
        for model, cost in self.costs.items():
            facts |= {f"cost.{model}": round(cost.price, 6), f"warm.{model}": cost.warm}
        return facts
