"""Tools as clients name them: functions that they run, file search, and tools of this server ("firsttoken:<name>")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticOmit

from agents.function_tool import FunctionTool
from agents.turn import FileSearch
from retrieval.filter import Filter
from worker.wire import limits
from worker.wire.ignored import note
from worker.wire.items import Name
from worker.wire.schemas import bounded, constrainable
from worker.wire.strict import UNSUPPORTED, Strict, Unsupported, only, up_to

SERVER_PREFIX = "firsttoken:"
# Coding agents send them along with every request.
ABSENT = ("namespace", "web_search", "web_search_preview", "tool_search", "image_generation")
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    if schema and schema.get("type", "object") != "object":
        raise ValueError("the schema of parameters must have the type object")
    return schema


Schema: TypeAlias = Annotated[dict[str, Any], AfterValidator(bounded), AfterValidator(_of_an_object)]
Description: TypeAlias = Annotated[str, StringConstraints(max_length=limits.DESCRIPTION_CHARS_MAX)]


def enforceable(strict: bool | None, info: ValidationInfo) -> bool | None:
    """Raises InvalidSchema, as a ValueError, for `strict` with parameters that no grammar can enforce."""
    if strict:
        constrainable(info.data.get("parameters") or NO_PARAMETERS, "parameters")
    return strict


class FunctionToolParam(Strict):
    """A function that the caller runs. With `strict`, its arguments always match the schema."""

    type: Literal["function"]
    name: Name
    description: Description | None = None
    parameters: Schema | None = None
    strict: Annotated[bool | None, AfterValidator(enforceable)] = None
    allowed_callers: Unsupported = None
    defer_loading: Annotated[bool | None, only(None, False)] = None
    output_schema: Unsupported = None

    @property
    def function(self) -> FunctionTool:
        return FunctionTool(self.name, self.description or "", self.parameters or NO_PARAMETERS, bool(self.strict))

    def echo(self) -> dict[str, Any]:
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": bool(self.strict),
        }


class RankingOptions(Strict):
    ranker: Annotated[str | None, only(None, "auto")] = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    hybrid_search: Unsupported = None


class FileSearchTool(Strict):
    """Search these vector stores (ids or names) before the answer."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=200)]],
        Field(min_length=1, max_length=limits.STORES_MAX),
    ]
    max_num_results: Annotated[int, Field(ge=1, le=limits.RESULTS_MAX)] | None = None
    ranking_options: RankingOptions | None = None
    filters: Filter | None = None

    @property
    def score_threshold(self) -> float:
        return self.ranking_options.score_threshold if self.ranking_options else 0.0

    @property
    def name(self) -> str:
        return self.type

    @property
    def search(self) -> FileSearch:
        usual = FileSearch(())
        return FileSearch(
            tuple(self.vector_store_ids),
            self.max_num_results or usual.max_num_results,
            self.score_threshold,
            self.filters,
        )

    def echo(self) -> dict[str, Any]:
        return {
            "type": "file_search",
            "vector_store_ids": self.vector_store_ids,
            "max_num_results": self.max_num_results,
            "ranking_options": {"ranker": "auto", "score_threshold": self.score_threshold},
            "filters": self.filters.model_dump() if self.filters else None,
        }


class ServerTool(Strict):
    """A tool that the server runs during the answer."""

    type: Annotated[str, StringConstraints(pattern=rf"^firsttoken:[a-z0-9_]{{1,{limits.NAME_CHARS_MAX}}}$")]

    @property
    def name(self) -> str:
        return self.type.removeprefix(SERVER_PREFIX)

    def echo(self) -> dict[str, Any]:
        return {"type": self.type}


def _tool_kind(tool: Any) -> str | None:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    if not isinstance(kind, str):
        return None
    return "server" if kind.startswith(SERVER_PREFIX) else kind if kind in ("function", "file_search") else None


def _present(tool: Any, info: ValidationInfo) -> Any:
    """Tools of other servers are not offered to the model. A request that requires one of them is rejected."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in ABSENT:
        note(info, f"tools.{kind}")
        raise PydanticOmit
    return tool


Tool: TypeAlias = Annotated[
    Annotated[FunctionToolParam, Tag("function")]
    | Annotated[FileSearchTool, Tag("file_search")]
    | Annotated[ServerTool, Tag("server")],
    Discriminator(
        _tool_kind,
        custom_error_type=UNSUPPORTED,
        custom_error_message="A tool must have the type function, file_search or firsttoken:<name>.",
    ),
    BeforeValidator(_present),
]


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def distinct(tools: list[N]) -> list[N]:
    """Raises ValueError for two tools of one name: the model could not tell them apart."""
    for name, count in Counter(tool.name for tool in tools).items():
        if count > 1:
            raise ValueError(f"two tools are named '{name}'")
    return tools


def check_given(names: Iterable[str], info: ValidationInfo) -> None:
    """Raises ValueError for a name that none of the request's tools has. `tools` is validated before the fields that
    refer to it.
    """
    given = {tool.name for tool in info.data.get("tools") or ()}
    if missing := sorted(set(names) - given):
        raise ValueError(f"'{missing[0]}' is not among the tools of this request")


class ToolReference(Strict):
    """A reference to one of the request's tools: a function by `name`, others by type."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=80)]
    name: Name | None = None

    @property
    def tool_name(self) -> str:
        """The name that a model calls; file search is not called but runs before."""
        return self.name or self.type.removeprefix(SERVER_PREFIX)


class ToolChoice(Strict):
    """auto, none, required, one tool, or a list of allowed tools."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=80)]
    name: Name | None = None
    mode: Literal["auto", "required", "none"] | None = None
    tools: Annotated[list[ToolReference], up_to(limits.TOOLS_MAX, least=1)] | None = None

    @model_validator(mode="after")
    def _is_one_of_the_forms(self) -> ToolChoice:
        if self.type == "function" and self.name is None:
            raise ValueError("a function must be chosen by its name")
        if (self.type == "allowed_tools") != (self.tools is not None):
            raise ValueError("allowed_tools needs a list of tools")
        if not (self.type in ("mode", "function", "allowed_tools", "file_search") or self.is_server_tool):
            raise ValueError("choose auto, none, required, a function, file_search, firsttoken:<name> or allowed_tools")
        return self

    @property
    def is_server_tool(self) -> bool:
        return self.type.startswith(SERVER_PREFIX)

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
        return self.name or self.type.removeprefix(SERVER_PREFIX)

    @property
    def names(self) -> frozenset[str]:
        """All tools that are named, to be checked against those of the request."""
        if self.type == "file_search":
            return frozenset({"file_search"})
        return self.allowed or (frozenset() if self.type == "mode" else frozenset({self.wanted}))

    def echo(self) -> Any:
        return self.mode if self.type == "mode" else self.model_dump(exclude_none=True)


def as_choice(value: Any) -> Any:
    """The words auto, none and required in the object form."""
    return {"type": "mode", "mode": value} if isinstance(value, str) else value


Choice: TypeAlias = Annotated[ToolChoice, BeforeValidator(as_choice)]
AUTO = ToolChoice(type="mode", mode="auto")
