"""Chooses the model of each step by the route of its turn, and remembers which model knows which conversation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

from agents.available_tools import AvailableTools
from agents.message import Compaction, FunctionCall, FunctionCallOutput, Item, Message, Reasoning, pictures_in
from agents.model_registry import Candidate, ModelRegistry
from agents.routing.policy import Decision, Fixed, Steps, decide, named_by
from agents.routing.situation import Cost, Situation, language_of
from agents.turn import Turn
from inference.generation import Generation
from inference.trace import Trace

CONVERSATIONS_MAX = 10_000  # whose models are remembered, in about 2 MB


class Router:
    """For the event loop only."""

    def __init__(self, model_registry: ModelRegistry) -> None:
        self.model_registry = model_registry
        # The model that wrote the last answer of a conversation: its prompt cache has what precedes it.
        self._wrote: OrderedDict[int, set[int]] = OrderedDict()  # versions of candidates

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
        offer: AvailableTools | None = None,
        *,
        documents: int = 0,
        step: int = 0,
        trace: Trace | None = None,
    ) -> Decision:
        """The choice for the next step, in a span if there is a trace. `offer`: the tools that may still be called."""
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
            situation = self._situation(turn, output, offer, documents, step, named)
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
        self._wrote.setdefault(said[0], set()).add(candidate.version)
        self._wrote.move_to_end(said[0])
        if len(self._wrote) > CONVERSATIONS_MAX:
            self._wrote.popitem(last=False)

    def _situation(
        self,
        turn: Turn,
        output: Sequence[Item],
        offer: AvailableTools | None,
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
        wrote: Collection[int] = self._wrote.get(said[0], ()) if said else ()
        known = chars - sum(map(_chars, items[said[1] + 1 :])) if said else 0
        return Situation(
            question_chars=len(question),
            prompt_chars=chars,
            documents=documents,
            offers_tools=bool(offer and offer.callable),
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
    for at, item in _reversed(items):
        if isinstance(item, FunctionCall):
            return hash((turn.salt, item.call_id)), at
        if isinstance(item, Message) and item.role == "assistant":
            return hash((turn.salt, item.text)), at
    return None


def _reversed(items: Sequence[Item]) -> Iterator[tuple[int, Item]]:
    for at in range(len(items) - 1, -1, -1):
        yield at, items[at]


def _chars(item: Item) -> int:
    match item:
        case Message(text=text) | Reasoning(text=text) | Compaction(summary=text) | FunctionCallOutput(output=text):
            return len(text)
        case FunctionCall(arguments=text, result=result):
            return len(text) + (len(result.output) if result else 0)
    return 0
