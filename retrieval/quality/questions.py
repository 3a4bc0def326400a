"""Judged questions: a file of JSON lines, resolved to the places in a store that hold the answers.

Lines with the same question belong together: each names one more place of an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from retrieval.errors import RetrievalError
from retrieval.quality.measures import Target
from retrieval.store import PassageStore

BYTES_MAX = 64 * 1024 * 1024  # read at once
LINES_MAX = 100_000
QUESTION_CHARS_MAX = 8000  # the embedder reads no more
PLACES_MAX = 100  # of one text in one file: more means boilerplate, not an answer
ERRORS_MAX = 20  # reported individually

_Name = Annotated[str, Field(min_length=1, max_length=4096)]


class UnusableQuestions(RetrievalError):
    """The file of questions cannot be used; the message says where and why."""

    status = 400
    code = "invalid_questions"


class Line(BaseModel):
    """One question and one place of its answer; without `text` and `start`, that is anywhere in the file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    question: Annotated[str, Field(min_length=1, max_length=QUESTION_CHARS_MAX)]
    file: _Name | None = None  # its name, or the end of its path
    file_id: _Name | None = None
    text: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None  # white space may differ
    start: Annotated[int, Field(ge=0)] | None = None
    end: Annotated[int, Field(ge=1)] | None = None
    grade: Annotated[float, Field(gt=0, le=100)] = 1.0

    @model_validator(mode="after")
    def _names_one_place(self) -> Line:
        if self.file is None and self.file_id is None and self.text is None:
            raise ValueError("name what should be found: file, file_id or text")
        if self.file is not None and self.file_id is not None:
            raise ValueError("give either file or file_id, not both")
        if (self.start is None) != (self.end is None) or (self.start or 0) >= (self.end or 1):
            raise ValueError("start and end must be given together, and start must be smaller")
        if self.start is not None and (self.text is not None or (self.file or self.file_id) is None):
            raise ValueError("start and end are offsets in a file and cannot be combined with text")
        return self


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    targets: tuple[Target, ...]  # at least one


@dataclass(slots=True)
class Resolved:
    questions: list[Question]
    errors: list[str] = field(default_factory=list)  # for lines that match nothing in the store


def read_questions(path: Path) -> list[Line]:
    """Raises UnusableQuestions, OSError."""
    if path.stat().st_size > BYTES_MAX:
        raise UnusableQuestions(f"{path} is larger than {BYTES_MAX >> 20} MiB")
    lines: list[Line] = []
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        if not text.strip():
            continue
        if len(lines) == LINES_MAX:
            raise UnusableQuestions(f"{path} has more than {LINES_MAX} lines")
        try:
            lines.append(Line.model_validate_json(text))
        except ValidationError as error:
            raise UnusableQuestions(f"{path}, line {number}: {_reason(error)}") from None
    if not lines:
        raise UnusableQuestions(f"{path} contains no question")
    return lines


async def resolve(lines: Sequence[Line], *, tenant_id: UUID, store: PassageStore, store_id: str) -> Resolved:
    """The places in this store that the lines name. Reads every file in which a text has to be found, once."""
    names = await store.filenames(tenant_id, store_id)
    wanted = [_files_of(line, names) for line in lines]
    targets: list[list[Target]] = [
        [] if line.text is not None else [Target(id, line.start or 0, line.end, line.grade) for id in files]
        for line, files in zip(lines, wanted, strict=True)
    ]
    searched: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        for file_id in wanted[index] if line.text is not None else ():
            searched.setdefault(file_id, []).append(index)
    for file_id, indices in searched.items():
        find = _finder((await store.file(tenant_id, file_id)).content)
        for index in indices:
            line = lines[index]
            targets[index] += [Target(file_id, *place, line.grade) for place in find(line.text or "")]
    return _joined(lines, wanted, targets)


def _joined(lines: Sequence[Line], wanted: Sequence[Sequence[str]], targets: Sequence[list[Target]]) -> Resolved:
    questions: dict[str, list[Target]] = {}
    errors = []
    for line, files, places in zip(lines, wanted, targets, strict=True):
        if places:
            questions.setdefault(line.question, []).extend(places)
        elif not files:
            errors.append(f"“{line.question}”: the store has no file {line.file or line.file_id}")
        else:
            errors.append(f"“{line.question}”: the text does not occur in {line.file or line.file_id or 'the store'}")
    return Resolved([Question(text, tuple(dict.fromkeys(found))) for text, found in questions.items()], errors)


def _files_of(line: Line, names: dict[str, str]) -> list[str]:
    if line.file_id is not None:
        return [line.file_id] if line.file_id in names else []
    if line.file is None:
        return list(names)
    exact = [file_id for file_id, name in names.items() if name == line.file]
    return exact or [file_id for file_id, name in names.items() if name.endswith(f"/{line.file}")]


def _finder(content: str) -> Callable[[str], list[tuple[int, int]]]:
    """A function that finds texts in this content, ignoring white space. Most texts are not in it at all."""
    words = " ".join(content.split())

    def find(text: str) -> list[tuple[int, int]]:
        wanted = text.split()
        if not wanted or " ".join(wanted) not in words:
            return []
        return list(_places(content, wanted))

    return find


def _places(content: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    for count, match in enumerate(re.finditer(r"\s+".join(map(re.escape, words)), content)):
        if count == PLACES_MAX:
            return
        yield match.span()


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    said = first["msg"].removeprefix("Value error, ")
    return f"{name}: {said}" if name else said
