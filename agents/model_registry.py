"""The models of a worker, and the routes by which it chooses among them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import count
from typing import Protocol

from agents.budget import ANSWER_TOKENS
from agents.parser.choose import Dialect, choose
from agents.routing.policy import Fixed, Policy, named_by
from agents.routing.situation import Speed
from inference.generation import ThoughtLimit
from inference.language_model import LanguageModel
from inference.template_options import NO_OPTIONS, Value
from inference.trace import Trace

VERSIONS = count()


class OnDemand(Protocol):
    """A model whose engine is loaded on demand."""

    @property
    def is_loaded(self) -> bool: ...

    def in_use(self) -> AbstractContextManager[None]:
        """Once loaded, it stays loaded until the end of the block."""

    def foresee(self) -> None:
        """Start to load it in advance, if that does no harm: a request may be about to need it."""

    async def load(self) -> None:
        """Return when it can answer. Raises InferenceError."""


@dataclass
class Candidate:
    """A model with what the agent loop derives from it. `engine_second` is the price of a second of its engine, in the
    operator's unit; it replaces that of agents.toml if it `is_priced`. A model that replaces this one has another
    `version`: what is known about this one does not apply to it."""

    model: LanguageModel
    engine_second: float = 1.0
    switches: Mapping[str, Value] = field(default_factory=lambda: NO_OPTIONS)  # for requests that set none
    on_demand: OnDemand | None = None
    is_priced: bool = False
    version: int = field(default_factory=VERSIONS.__next__)

    def __post_init__(self) -> None:
        self.speed = Speed.of_size(self.model.measures.get("n_params", 0))

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def own_price(self) -> float | None:
        """The price of a second of its engine, if it has one of its own."""
        return self.engine_second if self.is_priced else None

    @cached_property
    def dialect(self) -> Dialect:
        return choose(self.model.chat_template, self.model.capabilities)

    @cached_property
    def call_tokens(self) -> tuple[int, ...]:
        """The tokens that begin a call, for marks that are a single token."""
        marks = self.dialect.call_marks
        spelled = [self.model.tokenize(mark, add_special=False, parse_special=True) for mark in marks]
        return tuple(ids[0] for ids in spelled if len(ids) == 1)

    @cached_property
    def thought(self) -> ThoughtLimit | None:
        """How its reasoning is ended; None for a model without marks of reasoning that are known."""
        if (parts := self.dialect.thought_and_answer) is None:
            return None
        marks, answer = parts
        ends = self.model.tokenize(marks.close + answer, add_special=False, parse_special=True)
        return ThoughtLimit(marks.open, marks.close, tuple(ends)) if ends else None

    @property
    def answer_tokens(self) -> int:
        """Reserved for the answer beside passages and results; less in a small context."""
        return min(ANSWER_TOKENS, self.model.context_length // 8)

    @property
    def is_loaded(self) -> bool:
        return self.on_demand is None or self.on_demand.is_loaded

    async def ready(self, trace: Trace, held: ExitStack) -> None:
        """Return when it can compute; it stays loaded until `held` is closed. Raises InferenceError."""
        if self.on_demand is None:
            return
        held.enter_context(self.on_demand.in_use())
        if not self.on_demand.is_loaded:
            with trace.span("load", model=self.name):
                await self.on_demand.load()


class ModelRegistry:
    """`default` names the model or the route of requests that name none: the first model, if it is not given."""

    def __init__(
        self, candidates: Mapping[str, Candidate], routes: Mapping[str, Policy] | None = None, default: str = ""
    ) -> None:
        self.candidates = candidates
        self.routes: Mapping[str, Policy] = routes or {}
        self.default = default or next(iter(candidates))

    @property
    def sees(self) -> bool:
        """Whether one of the models sees images."""
        return any(candidate.model.sees for candidate in self.candidates.values())

    def replace(self, other: ModelRegistry) -> None:
        """Replace the contents by those of the other registry. Turns that have chosen a model keep it."""
        self.candidates, self.routes, self.default = other.candidates, other.routes, other.default

    @classmethod
    def of(cls, model: LanguageModel) -> ModelRegistry:
        """The registry of a worker with one model."""
        return cls({model.name: Candidate(model)})

    @property
    def names(self) -> list[str]:
        """The names that a request may use, the default first."""
        return list(dict.fromkeys((self.default, *self.candidates, *self.routes)))

    def route(self, name: str | None) -> Policy:
        """The route of a name; the default for unknown names."""
        asked = name or ""
        named = asked if asked in self.routes or asked in self.candidates else self.default
        return self.routes[named] if named in self.routes else _fixed(named)

    def best(self, name: str | None) -> Candidate:
        """The model that answers if no route chooses."""
        return self.candidates[named_by(self.route(name))[-1]]


@cache  # of the names of models: a request asks several times
def _fixed(model: str) -> Policy:
    return Fixed(model=model)
