"""The models of a worker, the choice of the one for each step by the route of its turn, and which of them knows which
conversation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import count
from typing import Protocol

from agents.message import Compaction, FunctionCall, FunctionCallOutput, Item, Message, Reasoning, pictures_in
from agents.parser.dialect import Dialect, choose
from agents.routing.policy import Cost, Decision, Fixed, Policy, Situation, Speed, Steps, decide, language_of, named_by
from agents.turn import ANSWER_TOKENS, Turn
from inference.generation import Generation, ReasoningLimit
from inference.language_model import LanguageModel
from inference.lru_cache import LruCache
from inference.prompt import NO_OPTIONS, Value
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
    def reasoning_limit(self) -> ReasoningLimit | None:
        """How its reasoning is ended; None for a model without marks of reasoning that are known."""
        if (parts := self.dialect.thought_and_answer) is None:
            return None
        marks, answer = parts
        ends = self.model.tokenize(marks.close + answer, add_special=False, parse_special=True)
        return ReasoningLimit(marks.open, marks.close, tuple(ends)) if ends else None

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


CONVERSATIONS_MAX = 10_000  # whose models are remembered, in about 2 MB


class Router:
    """For the event loop only."""

    def __init__(self, model_registry: ModelRegistry) -> None:
        self.model_registry = model_registry
        # The model that wrote the last answer of a conversation: its prompt cache has what precedes it.
        self._wrote = LruCache[int, set[int]](CONVERSATIONS_MAX)  # versions of candidates

    def candidate(self, name: str) -> Candidate:
        return self.model_registry.candidates[name]

    def likely(self, turn: Turn) -> Candidate:
        """The model that will probably begin the turn, before the search."""
        return self.candidate(self.decide(turn).model)

    def named(self, turn: Turn) -> list[Candidate]:
        """All models that may take a step of the turn."""
        return [self.candidate(name) for name in named_by(self.model_registry.route(turn.model))]

    def rewriter(self, turn: Turn) -> Candidate | None:
        """The model that rewrites a question that depends on earlier messages into a search query."""
        route = self.model_registry.route(turn.model)
        return self.candidate(route.queries) if isinstance(route, Steps) and route.queries else None

    def decide(
        self,
        turn: Turn,
        output: Sequence[Item] = (),
        *,
        offers_tools: bool = False,
        documents: int = 0,
        step: int = 0,
        trace: Trace | None = None,
    ) -> Decision:
        """The choice for the next step, in a span if there is a trace. `offers_tools`: some may still be called."""
        route = self.model_registry.route(turn.model)
        if turn.prompt:  # token ids belong to one model
            return Decision(self.model_registry.best(turn.model).name, "a prompt as it stands")
        if isinstance(route, Fixed) and isinstance(route.model, str):
            return Decision(route.model, "fixed")
        named = named_by(route)
        seeing = [name for name in named if self.candidate(name).model.sees]
        if 0 < len(seeing) < len(named) and any(pictures_in((*turn.history, *turn.input, *output))):
            return Decision(seeing[0], "it sees images")
        with (trace or Trace()).span("route") as span:
            situation = self._situation(turn, output, offers_tools, documents, step, named)
            decision = decide(route, situation)
        span.attributes |= {
            "policy": route.policy,
            "model": decision.model,
            "reason": decision.reason,
            **({"fallback": decision.fallback} if decision.is_trial else {}),
            **situation.attributes,
        }
        return decision

    def learn(self, candidate: Candidate, turn: Turn, items: Sequence[Item], generation: Generation) -> None:
        """Learn from a step that has ended."""
        stamps = generation.facts.stamps
        if stamps.first_token_ns:
            candidate.speed.learn(
                generation.prompt_tokens - generation.facts.cached_tokens,
                max(0, stamps.prefilled_ns - stamps.admitted_ns) / 1e9,
                len(generation.ids),
                max(0, stamps.last_token_ns - stamps.first_token_ns) / 1e9,
            )
        self._note(_last_said(turn, items), candidate)

    def wrote(self, turn: Turn, candidate: Candidate) -> None:
        """On another worker, the model of the last answer before the turn."""
        self._note(_last_said(turn, (*turn.history, *turn.input)), candidate)

    def _note(self, said: tuple[int, int] | None, candidate: Candidate) -> None:
        if said is None or len(self.model_registry.candidates) == 1:
            return
        self._wrote.put(said[0], {*(self._wrote.get(said[0]) or ()), candidate.version})

    def _situation(
        self,
        turn: Turn,
        output: Sequence[Item],
        offers_tools: bool,
        documents: int,
        step: int,
        models: Sequence[str],
    ) -> Situation:
        items = (*turn.history, *turn.input, *output)
        question = next(
            (item.text for item in reversed(items) if isinstance(item, Message) and item.role == "user"), ""
        )
        chars = len(turn.instructions or "") + sum(map(_chars, items))
        said = _last_said(turn, items)
        wrote: Collection[int] = (said and self._wrote.get(said[0])) or ()
        known = chars - sum(map(_chars, items[said[1] + 1 :])) if said else 0
        return Situation(
            question_chars=len(question),
            prompt_chars=chars,
            documents=documents,
            offers_tools=offers_tools,
            step=step,
            guess=lambda: language_of(question),
            costs={name: self._cost(name, chars, known, warm=self.candidate(name).version in wrote) for name in models},
        )

    def _cost(self, name: str, chars: int, known: int, *, warm: bool) -> Cost:
        candidate = self.candidate(name)
        return candidate.speed.cost(
            chars, candidate.engine_second, warm=warm, is_loaded=candidate.is_loaded, cached_chars=known
        )


def _last_said(turn: Turn, items: Sequence[Item]) -> tuple[int, int] | None:
    """A key for the newest item that a model wrote, and its position. Clients send texts back without their ids, calls
    with them."""
    for at, item in reversed([*enumerate(items)]):
        if isinstance(item, FunctionCall):
            return hash((turn.salt, item.call_id)), at
        if isinstance(item, Message) and item.role == "assistant":
            return hash((turn.salt, item.text)), at
    return None


def _chars(item: Item) -> int:
    match item:
        case Message(text=text) | Reasoning(text=text) | Compaction(summary=text) | FunctionCallOutput(output=text):
            return len(text)
        case FunctionCall(arguments=text, result=result):
            return len(text) + (len(result.output) if result else 0)
    return 0
