"""Checkpoints of a turn: marks that are stored with its events, from which another worker restores its state.

From a checkpoint, a turn resumes after the last stored event exactly as its lost worker would have continued it. Marks
are JSON. Each contains its position, so that reading one twice changes nothing, and a missing one is noticed.
"""

from __future__ import annotations

import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

from agents.budget import Budget
from agents.events import Usage
from agents.message import FunctionCall, Item
from agents.payload import from_payload, to_payload
from inference.generation import Finish, Generation, Spent
from inference.trace import now_ns
from retrieval.passage import Passage

T = TypeVar("T")


class CannotResume(Exception):
    """What is stored of a turn is not enough to resume it exactly on this worker. The message is for the log."""


class SentItems(Protocol):
    """The items of a reply that were sent."""

    @property
    def told(self) -> Sequence[Item]: ...

    @property
    def open_chars(self) -> int: ...


class StepState(Protocol):
    """The state of a step that its marks record."""

    @property
    def generation(self) -> Generation: ...

    @property
    def reply(self) -> SentItems: ...

    @property
    def is_kept(self) -> bool: ...

    @property
    def finish(self) -> Finish | None: ...

    @property
    def ids(self) -> Sequence[int]: ...

    fed: int
    ended: bool


class SourceState(Protocol):
    sources: list[Passage]


class TurnState(Protocol):
    """The state of a turn that its marks record."""

    @property
    def context(self) -> SourceState: ...

    output: list[Item]
    in_prompt: int
    concluding: str | None
    usage: Usage
    budget: Budget


@dataclass(frozen=True, slots=True)
class Begun:
    """A step, its model and prompt, and the state of the turn at its start."""

    step: StepState
    model: str
    prompt: Sequence[int]
    facts: Mapping[str, Any]


@dataclass(slots=True)
class Kept:
    """How much of a turn is recorded in marks."""

    steps: int = 0
    items: int = 0
    sources: int = 0
    written: int = 0  # of the newest step


class Marks:
    """Records what is new in a turn since its last stored marks. `stored` returns once all events sent so far are."""

    def __init__(self, stored: Callable[[], Awaitable[None]]) -> None:
        self.stored = stored
        self._turn: TurnState | None = None
        self._begun: list[Begun] = []
        self._kept = self._taken = Kept()

    def begin(self, turn: TurnState, step: StepState, model: str, prompt: Sequence[int], *, thinking: bool) -> None:
        """Begin the next step of the turn, or that of the model that takes over a step on trial."""
        facts = {
            "thinking": thinking,
            "output": len(turn.output),
            "in_prompt": turn.in_prompt,
            "concluding": turn.concluding,
            "usage": asdict(turn.usage),
            "budget": turn.budget.told(now_ns()),
        }
        self._turn = turn
        self._begun.append(Begun(step, model, prompt, facts))

    def take(self) -> list[dict[str, Any]]:
        """The marks for everything new; returned again until `keep` confirms that they are stored."""
        turn, kept = self._turn, self._kept
        if turn is None:
            return []
        marks: list[dict[str, Any]] = [
            {"step": number, "model": begun.model, "prompt": packed(begun.prompt), **begun.facts}
            for number, begun in enumerate(self._begun[kept.steps :], kept.steps)
        ]
        items, sources = turn.output[kept.items :], turn.context.sources[kept.sources :]
        if items:
            marks.append({"from": kept.items, "items": list(map(to_payload, items))})
        if sources:
            marks.append({"from": kept.sources, "sources": list(map(asdict, sources))})
        self._taken = Kept(len(self._begun), len(turn.output), len(turn.context.sources))
        step = self._begun[-1].step
        if step.is_kept:
            since = kept.written if kept.steps == len(self._begun) else 0
            marks.append(_written(len(self._begun) - 1, step, since))
            self._taken.written = step.fed
        return marks

    def keep(self) -> None:
        """The marks that were taken last are stored. Only the newest step can still change."""
        self._kept = self._taken


def _written(number: int, step: StepState, since: int) -> dict[str, Any]:
    over = step.finish is not None and step.fed >= len(step.ids)
    return {
        "of": number,
        "from": since,
        "written": list(step.ids[since : step.fed]),
        "told": [[item.id, item.call_id if isinstance(item, FunctionCall) else ""] for item in step.reply.told],
        "chars": step.reply.open_chars,
        "finish": str(step.finish) if over else None,
        "ended": step.ended,
    }


@dataclass(slots=True)
class Checkpoint:
    """The state of a turn at the start of its newest step, and the progress of that step: the tokens `written`, the ids
    of the items that were sent (`told`), and the characters sent of the last one."""

    model: str = ""
    prompt: Sequence[int] = ()
    thinking: bool = False
    before: int = 0  # items of the output that precede the step
    in_prompt: int = 0
    concluding: str | None = None
    usage: Usage = field(default_factory=Usage)
    budget: Mapping[str, Any] = field(default_factory=dict)
    output: list[Item] = field(default_factory=list)
    sources: list[Passage] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    told: Sequence[tuple[str, str]] = ()
    chars: int = 0
    finish: Finish | None = None
    ended: bool = False
    _step: int = -1

    @classmethod
    def read(cls, marks: Iterable[Mapping[str, Any]]) -> Checkpoint:
        """Raises CannotResume."""
        checkpoint = cls()
        try:
            for mark in marks:
                checkpoint._add(mark)
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
            raise CannotResume(f"a checkpoint mark cannot be read: {error!r}") from error
        if checkpoint._step < 0:
            raise CannotResume("none of its steps is known")
        return checkpoint

    def _add(self, mark: Mapping[str, Any]) -> None:
        if "step" in mark:
            self._begin(mark)
        elif "items" in mark:
            _put(self.output, mark["from"], [from_payload(item) for item in mark["items"]])
        elif "sources" in mark:
            _put(self.sources, mark["from"], [Passage(**source) for source in mark["sources"]])
        elif "written" in mark and mark["of"] == self._step:
            _put(self.written, mark["from"], mark["written"])
            self.told = tuple((id, call_id) for id, call_id in mark["told"])
            self.chars, self.ended = mark["chars"], mark["ended"]
            self.finish = Finish(mark["finish"]) if mark["finish"] else None

    def _begin(self, mark: Mapping[str, Any]) -> None:
        usage = {**mark["usage"], "spent": Spent(**mark["usage"]["spent"])}
        self.model, self.prompt, self.thinking = mark["model"], unpacked(mark["prompt"]), mark["thinking"]
        self.before, self.in_prompt, self.concluding = mark["output"], mark["in_prompt"], mark["concluding"]
        self.usage, self.budget = Usage(**usage), mark["budget"]
        if mark["step"] != self._step:
            self._step, self.written, self.told, self.chars = mark["step"], [], (), 0
            self.finish, self.ended = None, False


def _put(row: list[T], place: int, values: Sequence[T]) -> None:
    """Raises CannotResume if entries before `place` are missing."""
    if place > len(row):
        raise CannotResume(f"{place - len(row)} entries are missing")
    row[place : place + len(values)] = values


def packed(ids: Sequence[int]) -> str:
    """Token ids in about two characters each."""
    return b64encode(zlib.compress(array("I", ids).tobytes(), 1)).decode()


def unpacked(text: str) -> list[int]:
    """The inverse of `packed`. Raises ValueError and zlib.error."""
    ids = array("I")
    ids.frombytes(zlib.decompress(b64decode(text)))
    return ids.tolist()
