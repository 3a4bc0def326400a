"""Operators' files: TOML, validated by pydantic. A mistake is reported in one line with the key and its line number."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from agents.config_error import describe_error, keys_of

FILE_BYTES_MAX = 1_000_000
TABLE, KEY = re.compile(r"\s*(\[\[?)([^\[\]]+)\]"), re.compile(r"\s*([\w\"'. -]+?)\s*=")

File = TypeVar("File", bound=BaseModel)
ABSENT = object()

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Table(BaseModel):
    """A table of such a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def read_toml(path: Path, kind: type[File], invalid: type[Exception], bytes_max: int = FILE_BYTES_MAX) -> File:
    """Raises `invalid` naming the place in the file, OSError when it cannot be read."""
    text = path.read_bytes()
    if len(text) > bytes_max:
        raise invalid(f"{path} is longer than {bytes_max} bytes")
    data: Any = None
    try:
        data = tomllib.loads(text.decode())
        return kind.model_validate(data)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        keys, told = mistake(error, kind, data)
        raise invalid(f"{path}{line_of(keys, text.decode())}: {'.'.join(map(str, keys))}: {told}") from None


def mistake(error: ValidationError, kind: type[BaseModel], data: Any) -> tuple[Sequence[int | str], str]:
    """The place of the first one as the data spells it, and what is wrong there."""
    problem = error.errors(include_url=False, include_input=False)[0]
    return _keys(problem["loc"], data), describe_error(problem, keys_of(kind.model_json_schema()))


def _keys(place: Sequence[int | str], data: Any) -> list[int | str]:
    """The path as the file spells it, without the names of the union members that pydantic tried."""
    keys: list[int | str] = []
    for at, part in enumerate(place):
        if not isinstance(data, dict | list) or part == "[key]":
            break
        if isinstance(data, dict):
            inner = data.get(part, ABSENT)
        else:
            inner = data[part] if isinstance(part, int) else ABSENT
        known = inner is not ABSENT
        if known or at == len(place) - 1:
            keys.append(part)
        if known:
            data = inner
    return keys


def line_of(place: Sequence[int | str], text: str) -> str:
    """`:7` for the line of the file with this key, with its table, or with a table of it; empty if none is found."""
    keys, table, best = list(place), list[int | str](), (0, 0)
    counts = Counter[tuple[int | str, ...]]()  # of the tables of arrays so far
    for number, line in enumerate(text.splitlines(), 1):
        if match := TABLE.match(line):
            table, parts = [], _parts(match[2])
            for depth, part in enumerate(parts, 1):
                table.append(part)
                counts[tuple(table)] += match[1] == "[[" and depth == len(parts)
                table += [count - 1] if (count := counts[tuple(table)]) else []
            here = table
        elif match := KEY.match(line):
            here = [*table, *_parts(match[1])]
        else:
            continue
        shared = min(len(keys), len(here))
        if keys[:shared] == here[:shared] and shared > best[0]:
            best = (shared, number)
    return f":{best[1]}" if best[1] else ""


def _parts(name: str) -> list[str]:
    return [part.strip().strip("\"'") for part in name.split(".")]
