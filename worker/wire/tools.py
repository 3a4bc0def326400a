"""The tools of a response: those that the client runs, among them shells, patches and its own search, which the public
contract defines; file search; and tools of this server ("firsttoken:<name>").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import PydanticOmit

from agents.function_tool import CallForm, CallShape, FunctionTool, qualified
from agents.turn import FileSearch, ToolSearch
from retrieval.filter import Filter
from worker.wire import limits
from worker.wire.function_tools import CustomTool, Description, FunctionToolParam, NamespaceTool, Schema
from worker.wire.mcp import Label, McpTool, ToolName
from worker.wire.strict import AllowedCallers, Name, Strict, Tagged, Unsupported, note, only, short_for, type_of, up_to

TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}
LOCAL_SHELL = {
    "command": {"type": "array", "items": TEXT, "description": "The program and its arguments"},
    "working_directory": TEXT,
    "timeout_ms": COUNT,
}
SHELL = {
    "commands": {"type": "array", "items": TEXT, "description": "Shell commands, run in this order"},
    "timeout_ms": COUNT,
    "max_output_length": COUNT,
}
PATCH = {
    "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
    "path": TEXT,
    "diff": {"type": "string", "description": "The changes as a diff; empty for delete_file"},
}
QUERY = {"query": {"type": "string", "description": "Words that say what the tool should do"}}
SERVER_PREFIX = "firsttoken:"
# Coding agents send them along with every request.
KINDS = (
    *("function", "custom", "namespace", "tool_search", "local_shell", "shell", "apply_patch"),
    *("mcp", "file_search"),
)
ABSENT = ("web_search", "web_search_preview", "image_generation")


def _parameters(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


class _Builtin(Strict):
    type: str

    @property
    def name(self) -> str:
        return self.type

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        return ()

    def echo(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class _ClientTool(_Builtin):
    """The client runs it. Always strict: a call that does not fit has no item."""

    ABOUT: ClassVar[str]
    PARAMETERS: ClassVar[dict[str, Any]]

    type: CallForm

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        return (FunctionTool(self.type, self.ABOUT, self.PARAMETERS, True, CallShape(self.type)),)


class LocalShellTool(_ClientTool):
    """The client runs a program."""

    ABOUT: ClassVar = "Run a program on the computer of the user."
    PARAMETERS: ClassVar = _parameters(LOCAL_SHELL, "command")

    type: Literal["local_shell"]


class LocalEnvironment(Strict):
    type: Literal["local"]
    skills: Unsupported = None


class ShellTool(_ClientTool):
    """The client runs commands in a shell. There are no containers here."""

    ABOUT: ClassVar = "Run commands in a shell on the computer of the user."
    PARAMETERS: ClassVar = _parameters(SHELL, "commands")

    type: Literal["shell"]
    environment: LocalEnvironment | None = None
    allowed_callers: AllowedCallers = None


class ApplyPatchTool(_ClientTool):
    """The client changes a file."""

    ABOUT: ClassVar = "Create, change or delete a file of the user."
    PARAMETERS: ClassVar = _parameters(PATCH, "type", "path", "diff")

    type: Literal["apply_patch"]
    allowed_callers: AllowedCallers = None


class ToolSearchTool(_Builtin):
    """The search for deferred tools, run by this server or by the client."""

    type: Literal["tool_search"]
    execution: Literal["server", "client"] | None = None
    description: Description | None = None
    parameters: Schema | None = None

    @property
    def searches(self) -> tuple[ToolSearch, ...]:
        return () if self.execution == "client" else (ToolSearch("tool_search"),)

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        if self.execution != "client":
            return ()
        description = self.description or "Search further tools. Those that are found can be called afterwards."
        parameters = self.parameters or _parameters(QUERY, "query")
        return (FunctionTool("tool_search", description, parameters, shape=CallShape("tool_search")),)


class RankingOptions(Strict):
    ranker: Annotated[str | None, only(None, "auto")] = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    hybrid_search: Unsupported = None


class FileSearchTool(_Builtin):
    """Search these vector stores (ids or names) before the answer."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=200)]],
        Field(min_length=1, max_length=limits.STORES_MAX),
    ]
    max_num_results: Annotated[int, Field(ge=1, le=limits.RESULTS_MAX)] | None = None
    ranking_options: RankingOptions | None = None
    filters: Filter | None = None

    _place: int = 0  # among the tools of the request

    @property
    def score_threshold(self) -> float:
        return self.ranking_options.score_threshold if self.ranking_options else 0.0

    @property
    def search(self) -> FileSearch:
        usual = FileSearch(())
        return FileSearch(
            tuple(self.vector_store_ids),
            self.max_num_results or usual.max_num_results,
            self.score_threshold,
            self.filters,
            param=f"tools[{self._place}].vector_store_ids",
        )

    def echo(self) -> dict[str, Any]:
        return {
            "type": "file_search",
            "vector_store_ids": self.vector_store_ids,
            "max_num_results": self.max_num_results,
            "ranking_options": {"ranker": "auto", "score_threshold": self.score_threshold},
            "filters": self.filters.model_dump() if self.filters else None,
        }


class ServerTool(_Builtin):
    """A tool that the server runs during the answer."""

    TAG: ClassVar = "server"

    type: Annotated[str, StringConstraints(pattern=rf"^firsttoken:[a-z0-9_]{{1,{limits.NAME_CHARS_MAX}}}$")]

    @property
    def name(self) -> str:
        return self.type.removeprefix(SERVER_PREFIX)


def _tag_of(tool: Any) -> Any:
    kind = type_of(tool)
    return ServerTool.TAG if isinstance(kind, str) and kind.startswith(SERVER_PREFIX) else kind


def _present(tool: Any, info: ValidationInfo) -> Any:
    """Tools of other servers are not offered to the model. A request that requires one of them is rejected."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in ABSENT:
        note(info, f"tools.{kind}")
        raise PydanticOmit
    return tool


Tool: TypeAlias = Annotated[
    FunctionToolParam
    | CustomTool
    | NamespaceTool
    | ToolSearchTool
    | LocalShellTool
    | ShellTool
    | ApplyPatchTool
    | McpTool
    | FileSearchTool
    | ServerTool,
    Tagged(f"A tool must have one of the types {', '.join(KINDS)} or firsttoken:<name>.", _tag_of),
    BeforeValidator(_present),
]


def placed(given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """A search knows its place in the request, for what is found out later: stores are looked up as it runs."""
    tools = validate(given)
    if search := next((tool for tool in tools if isinstance(tool, FileSearchTool)), None):
        search._place = list(map(type_of, given)).index(search.type)
    return tools


class Named(Protocol):
    @property
    def names(self) -> Iterable[str]:
        """By which a model knows it: a namespace has several."""
        ...


N = TypeVar("N", bound=Named)


def distinct(tools: list[N]) -> list[N]:
    """Raises ValueError for two tools of one name: the model could not tell them apart."""
    names = Counter(name for tool in tools for name in tool.names)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise ValueError(f"two tools are named '{twice}'")
    return tools


def given(choice: N, info: ValidationInfo) -> N:
    """Raises ValueError for a name that none of the request's tools has. `tools` is validated before the fields that
    refer to it. The tools of an MCP server are not known yet.
    """
    known = {name for tool in info.data.get("tools") or () for name in tool.names}
    servers = tuple(name for name in known if qualified(name, "") == name)
    if missing := sorted(name for name in set(choice.names) - known if not name.startswith(servers)):
        raise ValueError(f"{_told(missing[0])} is not among the tools of this request: {_these(known)}")
    return choice


NAMED_MAX = 10  # of the tools of a request, in a message


def _told(name: str) -> str:
    label = name.removesuffix("__")
    return f"the MCP server '{label}'" if name != label else f"'{name}'"


def _these(known: Collection[str]) -> str:
    """The tools of a request, in words."""
    told = [f"those of {_told(name)}" if name.endswith("__") else _told(name) for name in sorted(known)]
    more = [f"{len(told) - NAMED_MAX} more"] if len(told) > NAMED_MAX else []
    return ", ".join([*told[:NAMED_MAX], *more]) or "it has none"


class ToolReference(Strict):
    """A reference to one of the request's tools: a function by `name`, others by type."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=80)]
    name: ToolName | None = None
    namespace: Name | None = None
    server_label: Label | None = None

    @property
    def tool_name(self) -> str:
        """The name that a model calls; file search is not called but runs before."""
        if self.server_label is not None:
            return qualified(self.server_label, self.name or "")
        if self.name is not None:
            return qualified(self.namespace or "", self.name)
        return self.type.removeprefix(SERVER_PREFIX)


class ToolChoice(ToolReference):
    """auto, none, required, one tool, or a list of allowed tools."""

    mode: Literal["auto", "required", "none"] | None = None
    tools: Annotated[list[ToolReference], up_to(limits.TOOLS_MAX, least=1)] | None = None

    @model_validator(mode="after")
    def _is_one_of_the_forms(self) -> ToolChoice:
        if self.type in ("function", "custom") and self.name is None:
            raise ValueError("a function must be chosen by its name")
        if (self.type == "allowed_tools") != (self.tools is not None):
            raise ValueError("allowed_tools needs a list of tools")
        if self.type not in ("mode", "allowed_tools", *KINDS) and not self.type.startswith(SERVER_PREFIX):
            raise ValueError("choose auto, none, required, allowed_tools, or a tool by its type and name")
        return self

    @property
    def allowed(self) -> frozenset[str] | None:
        """Names of the only tools that may be called; None: all."""
        return frozenset(tool.tool_name for tool in self.tools) if self.tools is not None else None

    @property
    def wanted(self) -> str:
        """auto, none or required, or the name of a tool."""
        if self.type in ("mode", "allowed_tools"):
            return self.mode or "auto"
        if self.type == "file_search":
            return "auto"  # it runs before the answer in any case
        return self.tool_name

    @property
    def once_called(self) -> ToolChoice:
        """What is left of it when a call was made: none is required any more."""
        if self.wanted in ("auto", "none"):
            return self
        return self.model_copy(update={"mode": "auto"}) if self.type == "allowed_tools" else AUTO

    @property
    def names(self) -> frozenset[str]:
        """All tools that are named, to be checked against those of the request."""
        if self.type == "file_search":
            return frozenset({"file_search"})
        return self.allowed or (frozenset() if self.type == "mode" else frozenset({self.wanted}))

    def echo(self) -> Any:
        return self.mode if self.type == "mode" else self.model_dump(exclude_none=True)


def of_mode(mode: str) -> dict[str, str]:
    """The words auto, none and required in the object form."""
    return {"type": "mode", "mode": mode}


Choice: TypeAlias = Annotated[ToolChoice, short_for(of_mode)]
AUTO = ToolChoice(type="mode", mode="auto")
