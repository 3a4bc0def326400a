"""Checkpoints of a turn: marks that are stored with its events, from which another worker restores its state.

From a checkpoint, a turn resumes after the last stored event exactly as its lost worker would have continued it. Marks
are JSON. Each contains its position, so that reading one twice changes nothing, and a missing one is noticed.
"""

from __future__ import annotations

import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agents.events import Usage
from agents.message import Item
from agents.payload import from_payload
from inference.generation import Finish, Spent
from retrieval.passage import Passage

T = TypeVar("T")


class CannotResume(Exception):
    """What is stored of a turn is not enough to resume it exactly on this worker. The message is for the log."""


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
