"""Files of cases, JSON lines or TOML, and their answers: a case is a request, and what a right answer must have.

[[case]]
id = "refund"
input = "How long do I have to send something back?"
stores = ["handbook"]

[case.expect]
pattern = "(?i)14 days"
cites = [{ file = "returns.md", says = ["14 days"] }]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import BaseModel, Field, StringConstraints, ValidationError, field_validator, model_validator

from agents.toml_file import Table, line_of, mistake, read_toml
from inference.grammar.conformance import Checked, Pattern
from worker.errors import StartError

TEXT_CHARS_MAX = 200_000  # a prompt beyond any context that is served here
MESSAGES_MAX, TOOLS_MAX, STORES_MAX = 256, 128, 8
CALLS_MAX = 16  # they are matched pairwise
PATTERN_CHARS_MAX = 2_000
NAME_CHARS_MAX = 200
ANSWERS_MAX = 64  # that are all right
TOKENS = 256  # of an answer, by default
REPEAT_MAX = 100

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=NAME_CHARS_MAX)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=TEXT_CHARS_MAX)]
Texts: TypeAlias = Annotated[list[Text], Field(min_length=1, max_length=ANSWERS_MAX)]


class Tool(Table):
    """A function that the model may call; it is not run."""

    name: Name
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False


class ExpectedCall(Table):
    """`also`: further accepted values of an argument. `optional`: arguments that may be omitted."""

    name: Name
    arguments: dict[str, Any] = Field(default_factory=dict)
    also: dict[str, list[Any]] = Field(default_factory=dict)
    optional: list[Name] = Field(default_factory=list)


class ExpectedCitation(Table):
    """The answer cites this file, whatever else it cites. `says`: each text occurs in the answer and in the cited
    passage of that file. Without it, the passage must support the sentence that cites it."""

    file: Name
    says: Annotated[list[Text], Field(max_length=ANSWERS_MAX)] = Field(default_factory=list)


class Place(Table):
    """A passage of this file, with this text if one is given; white space and case may differ."""

    file: Name
    text: Text | None = None


class Expected(Table):
    """At least one expectation; all of them must be met."""

    exact: Text | Texts | None = None
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=PATTERN_CHARS_MAX)] | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    calls: Annotated[list[ExpectedCall], Field(max_length=CALLS_MAX)] | None = None  # empty: none may be made
    ordered: bool = False  # whether calls must come in this order
    cites: Annotated[list[ExpectedCitation], Field(min_length=1, max_length=ANSWERS_MAX)] | None = None
    finds: Annotated[list[Place], Field(min_length=1, max_length=ANSWERS_MAX)] | None = None
    like: Text | None = None  # an answer that was right
    judge: Text | None = None  # a statement that a judge model must find true of the answer

    @field_validator("pattern")
    @classmethod
    def _can_be_matched(cls, value: str | None) -> str | None:
        if value is not None:
            Pattern(value)
        return value

    @field_validator("json_schema")
    @classmethod
    def _is_a_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            Checked(value)
        return value

    @model_validator(mode="after")
    def _expects_something(self) -> Expected:
        if not self.graders:
            raise ValueError(f"say what a correct answer has: one or more of {', '.join(GRADERS)}")
        return self

    @property
    def graders(self) -> tuple[str, ...]:
        return tuple(name for name in GRADERS if getattr(self, FIELDS.get(name, name)) is not None)

    @property
    def only_finds(self) -> bool:
        """Whether the case only searches: nothing has to be generated."""
        return self.graders == ("finds",)

    @property
    def texts(self) -> list[str]:
        """The answers that are exactly right."""
        return [self.exact] if isinstance(self.exact, str) else list(self.exact or ())


GRADERS = ("exact", "pattern", "schema", "calls", "cites", "finds", "like", "judge")
FIELDS = {"schema": "json_schema"}


class Defaults(Table):
    """Defaults for the cases of a file. `documents`: a folder beside the file, which a worker that is started for the
    suite ingests into the store `docs`."""

    name: Name | None = None
    instructions: Text | None = None
    tools: Annotated[list[Tool], Field(max_length=TOOLS_MAX)] = Field(default_factory=list)
    stores: Annotated[list[Name], Field(max_length=STORES_MAX)] = Field(default_factory=list)
    max_tokens: Annotated[int, Field(ge=1, le=32_768)] = TOKENS
    documents: Name | None = None


class Case(Table):
    id: Name | None = None
    group: Name | None = None  # reported separately
    input: Text | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MESSAGES_MAX)] | None = None
    instructions: Text | None = None
    tools: Annotated[list[Tool], Field(max_length=TOOLS_MAX)] | None = None
    stores: Annotated[list[Name], Field(max_length=STORES_MAX)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=32_768)] | None = None
    repeat: Annotated[int, Field(ge=1, le=REPEAT_MAX)] = 1  # its score is the mean
    expect: Expected

    @field_validator("messages")
    @classmethod
    def _are_messages(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """The format of chat completions; everything else is left to the server."""
        for message in value or ():
            if message.get("role") not in ROLES:
                raise ValueError(f"each message must have a role, one of {', '.join(ROLES)}")
            if not isinstance(message.get("content") or "", str):
                raise ValueError("the content of a message must be a string")
        return value

    @model_validator(mode="after")
    def _asks_something(self) -> Case:
        if (self.input is None) == (self.messages is None):
            raise ValueError("give either input or messages")
        if self.stores and any(message["role"] not in ("user", "assistant", "system") for message in self.said):
            raise ValueError("a case with stores cannot have tool messages")
        return self

    def with_defaults(self, defaults: Defaults, id: str) -> Case:
        """The case with every required field set. Raises ValueError."""
        stores = defaults.stores if self.stores is None else self.stores
        if not stores and (self.expect.cites or self.expect.finds):
            raise ValueError("stores: name what is searched, since a citation or a passage is expected")
        return self.model_copy(
            update={
                "id": self.id or id,
                "group": self.group or defaults.name,
                "instructions": self.instructions or defaults.instructions,
                "tools": defaults.tools if self.tools is None else self.tools,
                "stores": stores,
                "max_tokens": self.max_tokens or defaults.max_tokens,
            }
        )

    @property
    def said(self) -> list[dict[str, Any]]:
        return self.messages or [{"role": "user", "content": self.input}]

    @property
    def question(self) -> str:
        """The user's last message."""
        return next((str(each.get("content")) for each in reversed(self.said) if each["role"] == "user"), "")


ROLES: tuple[Literal["system", "user", "assistant", "tool"], ...] = ("system", "user", "assistant", "tool")


BYTES_MAX = 64 * 2**20  # read at once
CASES_MAX = 20_000  # each is run twice: a day of work


class _File(Table):
    suite: Defaults = Defaults()
    case: list[Case] = Field(default_factory=list)


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
        for at, case in found:
            if case.id in cases:
                raise StartError(f"{path}{_line(path, at)}: id: two cases have the id {case.id}")
            cases[case.id or ""] = case
    if not cases:
        raise StartError(f"{', '.join(map(str, paths))}: there is no case")
    if len(cases) > CASES_MAX:
        raise StartError(f"{len(cases)} cases exceed the limit of {CASES_MAX} per run: split the files")
    if len(set(folders)) > 1:
        raise StartError("suite.documents: files that are run together must name the same folder")
    return Suite(tuple(cases.values()), folders[0] if folders else None)


def _read(path: Path) -> tuple[Defaults, list[tuple[int, Case]]]:
    """With the place of each case: see `_line`."""
    if path.suffix == ".toml":
        file = read_toml(path, _File, StartError, BYTES_MAX)
        defaults, read = file.suite, list(enumerate(file.case))
    else:
        defaults, read = _read_lines(path)
    found: list[tuple[int, Case]] = []
    for at, case in read:
        try:
            found.append((at, case.with_defaults(defaults, f"{path.stem}-{len(found) + 1}")))
        except ValueError as error:
            raise StartError(f"{path}{_line(path, at)}: {error}") from None
    return defaults, found


def _line(path: Path, at: int) -> str:
    """The line of a case, which is the number of its table in a file of TOML."""
    return line_of(("case", at), path.read_text("utf-8")) if path.suffix == ".toml" else f":{at}"


def _read_lines(path: Path) -> tuple[Defaults, list[tuple[int, Case]]]:
    if path.stat().st_size > BYTES_MAX:
        raise StartError(f"{path} is larger than {BYTES_MAX >> 20} MiB")
    defaults, cases = Defaults(), list[tuple[int, Case]]()
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        kind: type[BaseModel] = Case
        try:
            value = orjson.loads(line)
            if isinstance(value, dict) and value.keys() == {"suite"}:
                kind, value = Defaults, value["suite"]
                defaults = Defaults.model_validate(value)
            else:
                cases.append((number, Case.model_validate(value)))
        except orjson.JSONDecodeError as error:
            raise StartError(f"{path}:{number}: not JSON: {error}") from None
        except ValidationError as error:
            place, told = mistake(error, kind, value)
            raise StartError(f"{path}:{number}: {'.'.join(map(str, place)) or 'case'}: {told}") from None
    return defaults, cases


@dataclass(frozen=True, slots=True)
class Called:
    """`arguments` is the JSON text as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that the model was given, or that a search returned. The n-th is cited as [n]."""

    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Milliseconds and tokens; `engine_ms` and `cost` as a worker of this project reports them. None: not known."""

    first_ms: float | None = None
    total_ms: float | None = None
    input_tokens: float | None = None
    cached_tokens: float | None = None
    output_tokens: float | None = None
    engine_ms: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`error` says in one line why there is none."""

    text: str = ""
    calls: tuple[Called, ...] = ()
    found: tuple[Found, ...] = ()
    took: Usage = field(default_factory=Usage)
    error: str | None = None

    @property
    def shown(self) -> dict[str, Any]:
        """For reports."""
        if self.error:
            return {"error": self.error}
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
        return {"text": self.text, **({"calls": calls} if calls else {})}
