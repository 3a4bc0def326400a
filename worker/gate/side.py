"""What is compared: a configuration that is started for the comparison, a model that is served somewhere, or answers
that were recorded before. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from worker.errors import StartError

FORMS = "a model with settings of `firsttoken serve`, NAME@URL of a server, or a JSON file of an earlier run"


@dataclass(frozen=True, slots=True)
class Private:
    """A worker of one's own: `flags` are those of `firsttoken serve`."""

    flags: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.flags).removeprefix("--model ") or "the bundled model"


@dataclass(frozen=True, slots=True)
class Served:
    """`url` has no /v1 at its end."""

    model: str
    url: str
    key_file: Path | None = None

    def __str__(self) -> str:
        return f"{self.model}@{self.url}"


@dataclass(frozen=True, slots=True)
class Recorded:
    path: Path

    def __str__(self) -> str:
        return str(self.path)


Side: TypeAlias = Private | Served | Recorded


def side(option: str, text: str, key_file: Path | None = None) -> Side:
    """What `option` names; its first word is a model unless it is a flag. Raises StartError."""
    model, at, url = text.partition("@")
    if at and url.startswith(("http://", "https://")):
        if not model or any(char.isspace() for char in text):
            raise StartError(f"{option} must be {FORMS}, not {text!r}")
        return Served(model, url.rstrip("/").removesuffix("/v1"), key_file)
    if key_file is not None:
        raise StartError(f"a key file is only for NAME@URL, and {option} is {text!r}")
    if text.endswith(".json"):
        return Recorded(Path(text))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise StartError(f"{option}: {error}") from None
    if not words:
        raise StartError(f"{option} must be {FORMS}")
    return Private(tuple(words) if words[0].startswith("-") else ("--model", *words))
