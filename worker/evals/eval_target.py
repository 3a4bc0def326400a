"""A target of an eval: a configuration that is started for it, a model that is served elsewhere, or the recording of an
earlier run. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from worker.errors import StartError

FORMS = "a model with settings of `firsttoken serve`, NAME@URL of a server, or a JSON file of an earlier run"


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """A worker that is started for the eval: `flags` are those of `firsttoken serve`."""

    flags: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.flags).removeprefix("--model ") or "the bundled model"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` has no /v1 at its end."""

    model: str
    url: str
    key_file: Path | None = None

    def __str__(self) -> str:
        return f"{self.model}@{self.url}"


@dataclass(frozen=True, slots=True)
class Recording:
    path: Path

    def __str__(self) -> str:
        return str(self.path)


EvalTarget: TypeAlias = LocalWorker | Endpoint | Recording


def eval_target(option: str, text: str, key_file: Path | None = None) -> EvalTarget:
    """The target that `option` names; the first word is a model unless it is a flag. Raises StartError."""
    model, at, url = text.partition("@")
    if at and url.startswith(("http://", "https://")):
        if not model or any(char.isspace() for char in text):
            raise StartError(f"{option} must be {FORMS}, not {text!r}")
        return Endpoint(model, url.rstrip("/").removesuffix("/v1"), key_file)
    if key_file is not None:
        raise StartError(f"a key file is only for NAME@URL, and {option} is {text!r}")
    if text.endswith(".json"):
        return Recording(Path(text))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise StartError(f"{option}: {error}") from None
    if not words:
        raise StartError(f"{option} must be {FORMS}")
    return LocalWorker(tuple(words) if words[0].startswith("-") else ("--model", *words))
