"""Files of cases: JSON lines, or TOML with a table [[case]] for each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from agents.config_error import describe_error, keys_of
from worker.errors import StartError
from worker.evals.case import Case, Defaults

T = TypeVar("T", Case, Defaults)

BYTES_MAX = 64 * 2**20  # read at once
CASES_MAX = 20_000  # each is run twice: a day of work
_TABLE = re.compile(r"\s*\[\[?\s*([A-Za-z0-9_.\-\"']+)\s*\]?\]")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\-\"']+)\s*=")


@dataclass(frozen=True, slots=True)
class Suite:
    cases: tuple[Case, ...]
    documents: Path | None = None

    @property
    def asks_judge(self) -> bool:
        return any(case.expect.judge is not None for case in self.cases)


def read_suites(paths: Sequence[Path]) -> Suite:
    """Raises StartError naming file, line and key; OSError."""
    cases: dict[str, Case] = {}
    folders: list[Path] = []
    for path in paths:
        defaults, found = _read(path)
        if defaults.documents is not None:
            folders.append((path.parent / defaults.documents).absolute())
            if not folders[-1].is_dir():
                raise StartError(f"{path}: suite.documents: there is no folder {folders[-1]}")
        for line, case in found:
            if case.id in cases:
                raise StartError(f"{path}:{line}: id: two cases have the id {case.id}")
            cases[case.id or ""] = case
    if not cases:
        raise StartError(f"{', '.join(map(str, paths))}: there is no case")
    if len(cases) > CASES_MAX:
        raise StartError(f"{len(cases)} cases exceed the limit of {CASES_MAX} per run: split the files")
    if len(set(folders)) > 1:
        raise StartError("suite.documents: files that are run together must name the same folder")
    return Suite(tuple(cases.values()), folders[0] if folders else None)


def _read(path: Path) -> tuple[Defaults, list[tuple[int, Case]]]:
    if path.stat().st_size > BYTES_MAX:
        raise StartError(f"{path} is larger than {BYTES_MAX >> 20} MiB")
    entries = list(_toml(path) if path.suffix == ".toml" else _lines(path))
    defaults, found = Defaults(), list[tuple[int, Case]]()
    for entry in entries:
        if entry.is_suite:
            defaults = entry.parsed(Defaults)
        else:
            case = entry.parsed(Case)
            try:
                found.append((entry.line, case.with_defaults(defaults, f"{path.stem}-{len(found) + 1}")))
            except ValueError as error:
                raise StartError(f"{path}:{entry.line}: {error}") from None
    return defaults, found


@dataclass(frozen=True, slots=True)
class _Entry:
    """A table of a file. `keys` are the lines of its keys, if they are on lines of their own."""

    path: Path
    line: int
    value: Any
    keys: dict[str, int]
    is_suite: bool = False

    def parsed(self, kind: type[T]) -> T:
        try:
            return kind.model_validate(self.value)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            named = [part for part in problem["loc"] if not (isinstance(part, str) and "[" in part)]
            place = ".".join(map(str, named)) or "case"
            known = [".".join(map(str, named[:length])) for length in range(len(named), 0, -1)]
            line = next((self.keys[each] for each in known if each in self.keys), self.line)
            told = describe_error(problem, keys_of(kind.model_json_schema()))
            raise StartError(f"{self.path}:{line}: {place}: {told}") from None


def _lines(path: Path) -> Iterator[_Entry]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise StartError(f"{path}:{number}: not JSON: {error}") from None
        if isinstance(value, dict) and value.keys() == {"suite"}:
            yield _Entry(path, number, value["suite"], {}, is_suite=True)
        else:
            yield _Entry(path, number, value, {})


def _toml(path: Path) -> Iterator[_Entry]:
    text = path.read_bytes()
    try:
        file = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StartError(f"{path}: not valid TOML: {error}") from None
    unknown = next((key for key in file if key not in ("suite", "case")), None)
    if unknown is not None:
        raise StartError(f"{path}: {unknown}: a suite has the tables [suite] and [[case]]")
    cases = file.get("case", [])
    if not isinstance(cases, list):
        raise StartError(f"{path}: case: write [[case]], with two brackets")
    places = _places(text.decode())
    if "suite" in file:
        yield _Entry(path, places[0][0], file["suite"], places[0][1], is_suite=True)
    for number, case in enumerate(cases, 1):
        line, keys = places[number] if number < len(places) else (1, {})
        yield _Entry(path, line, case, keys)


def _places(text: str) -> list[tuple[int, dict[str, int]]]:
    """The line numbers of [suite] and of each [[case]], with those of their keys."""
    places: list[tuple[int, dict[str, int]]] = [(1, {})]
    at, table = places[0], ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            name = match[1]
            if name == "case":
                at, table = (number, {}), ""
                places.append(at)
            elif name == "suite":
                at, table = (number, at[1]), ""
                places[0] = at
            else:
                table = name.partition(".")[2]
                at[1].setdefault(table, number)
        elif match := _KEY.match(line):
            at[1].setdefault(f"{table}.{match[1]}".strip("."), number)
    return places
