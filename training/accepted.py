"""Accepted answers of a platform, as `firsttoken eval export` prints them, among what is invented."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from inference.prompt import ChatMessage, ToolCall
from training.batches import Rows, Source, Split
from training.conversations.generator import DEFAULT_SYSTEM, encoded
from training.conversations.scene import Scene

ROOM_MIN = 120  # tokens; a shorter rest of a row stays empty
TRIES = 8  # conversations that may be too long for the rest of a row


def scenes(path: Path) -> list[Scene]:
    """Raises ValueError naming the line, OSError."""
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            if line.strip():
                found.append(scene_of(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}:{number}: no conversation with an answer ({error})") from None
    if not found:
        raise ValueError(f"{path} has no conversation")
    return found


def scene_of(line: Mapping[str, Any]) -> Scene:
    """Its last message is learnt; what an assistant said before was given. Raises ValueError, KeyError."""
    scene = Scene(line.get("tools") or ())
    if line["messages"][0]["role"] != "system":
        scene.system(DEFAULT_SYSTEM)
    for message in line["messages"]:
        if message["role"] == "assistant":
            scene.unlearnt.add(len(scene.messages))
        calls = [ToolCall(f["name"], f["arguments"]) for f in (c["function"] for c in message.get("tool_calls") or ())]
        scene.messages.append(ChatMessage(message["role"], message.get("content") or "", tuple(calls)))
    if scene.messages[-1].role != "assistant":
        raise ValueError("its last message must be an assistant's")
    scene.unlearnt.discard(len(scene.messages) - 1)
    return scene


@dataclass(frozen=True, slots=True)
class Accepted:
    """A source of batches: rows of the answers in a file among those of another one. Held-out rows stay its own."""

    file: Path
    share: float  # of the rows
    rest: Source

    def __call__(self, seed: str, split: Split) -> Rows:
        rest = self.rest(seed, split)
        return rest if split == "test" else _Mixed(scenes(self.file), self.share, rest, random.Random(seed))


@dataclass(slots=True)
class _Mixed:
    known: Sequence[Scene]
    share: float
    rest: Rows
    draw: random.Random

    def row(self, tokenizer: Tokenizer, length: int) -> tuple[list[int], list[int]]:
        if self.draw.random() >= self.share:
            return self.rest.row(tokenizer, length)
        ids: list[int] = []
        marks: list[int] = []
        for _ in range(TRIES):
            more, marked = encoded(tokenizer, list(self.draw.choice(self.known).pieces()))
            if len(ids) + len(more) <= length:
                ids += more
                marks += marked
            if length - len(ids) < ROOM_MIN:
                break
        return (ids, marks) if ids else self.rest.row(tokenizer, length)
