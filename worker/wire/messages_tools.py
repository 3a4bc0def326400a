"""Tools of the Messages API: functions that the client runs, those of MCP servers, and the search for deferred ones,
which messages add to a conversation or remove from it. Calls of hosted tools in earlier answers become text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticOmit

from agents.function_tool import Addition, FunctionTool, addition, qualified
from agents.mcp_config import SERVERS_MAX, TOOLS_MAX
from agents.message import FunctionCall, FunctionCallOutput, ToolListing
from agents.requested_server import ALL, NONE, Offer, RequestedServer, ToolFilter
from agents.turn import ToolSearch
from inference.grammar.calls import ANY_OBJECT
from worker.wire import limits
from worker.wire.function_tools import Description, Schema, enforces
from worker.wire.mcp import HeaderValue, Label, ServerUrl, ToolName, ToolNames, with_token
from worker.wire.strict import (
    SPELLABLE,
    Cached,
    CallId,
    Echoed,
    Lenient,
    Name,
    Tagged,
    note,
    only,
    type_of,
    up_to,
    without_effect,
)

DESCRIBES = (
    "Only Anthropic's models know the arguments of such a tool: leave its type out, and describe them in input_schema."
)
# Tools that run on Anthropic's own servers. Coding agents send them along with every request.
HOSTED = ("web_search_", "web_fetch_", "code_execution_")
SERVER_RESULT = "_tool_result"  # how the types of hosted tools' results end
SEARCHED, ERROR = "tool_search_tool_result", "Error"
# Keys whose values only their server can read, or that say what the other keys say.
UNREADABLE = ("type", "id", "file_id", "tool_use_id", "media_type", "cache_control", "citations")
ResultType: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,64}_tool_result$")]


class ToolConfiguration(Lenient):
    """Which tools may be used: how it was said before there were toolsets."""

    enabled: bool | None = None
    allowed_tools: ToolNames | None = None


class McpServerParam(Lenient):
    type: Literal["url"]
    name: Label
    url: Annotated[ServerUrl, Field(repr=False)]
    authorization_token: Annotated[HeaderValue | None, Field(repr=False)] = None
    tool_configuration: ToolConfiguration | None = None


McpServerParams: TypeAlias = Annotated[list[McpServerParam], up_to(SERVERS_MAX)]


class ToolConfig(Lenient):
    enabled: bool | None = None
    defer_loading: bool | None = None


class ListedTool(Lenient):
    """A tool as its server lists it."""

    name: ToolName
    description: Description | None = None
    input_schema: Schema

    @property
    def offer(self) -> Offer:
        return Offer(self.name, self.description or "", self.input_schema, read_only=False, idempotent=False)


ListedTools: TypeAlias = Annotated[list[ListedTool], up_to(TOOLS_MAX)]


class McpListingBlock(Echoed):
    """The tools of a server, as an earlier message told them: it is not asked for them again."""

    type: Literal["mcp_tool_listing"]
    mcp_server_name: Label
    tools: ListedTools

    def item(self) -> ToolListing:
        return ToolListing(self.mcp_server_name, tuple(tool.offer.shown for tool in self.tools))


class McpToolset(Cached):
    """The tools of a server of `mcp_servers`."""

    type: Literal["mcp_toolset"]
    mcp_server_name: Label
    default_config: ToolConfig = ToolConfig()
    configs: Annotated[dict[ToolName, ToolConfig], Field(max_length=TOOLS_MAX)] | None = None
    tools: ListedTools | None = None  # instead of asking the server for them

    @property
    def names(self) -> tuple[str, ...]:
        """What stands for all of its tools, whose names are not known yet."""
        return (qualified(self.mcp_server_name, ""),)

    @property
    def offered(self) -> ToolFilter:
        return self._where(attrgetter("enabled"), default=self.default_config.enabled is not False)

    @property
    def deferred(self) -> ToolFilter:
        return self._where(attrgetter("defer_loading"), default=bool(self.default_config.defer_loading))

    def _where(self, says: Callable[[ToolConfig], bool | None], *, default: bool) -> ToolFilter:
        """The tools of which their configuration says so, or the default."""
        said = {name: says(config) for name, config in (self.configs or {}).items()}
        if default:
            return ToolFilter(but=frozenset(name for name, yes in said.items() if yes is False))
        return ToolFilter(frozenset(name for name, yes in said.items() if yes))


def requested(
    servers: Sequence[McpServerParam], toolsets: Sequence[McpToolset], listings: Sequence[McpListingBlock] = ()
) -> dict[str, RequestedServer]:
    """The servers by the parameters that name them. Raises ValueError for a toolset without a server."""
    told = {each.mcp_server_name: each.tools for each in listings}
    sets = {each.mcp_server_name: each for each in toolsets}
    if missing := sorted(sets.keys() - {server.name for server in servers}):
        names = ", ".join(f"'{server.name}'" for server in servers) or "none"
        raise ValueError(f"an mcp_toolset names '{missing[0]}', but the servers are {names}")
    all = {
        f"mcp_servers[{at}].url": _requested(server, sets.get(server.name), told.get(server.name))
        for at, server in enumerate(servers)
    }
    return {param: server for param, server in all.items() if server.offered != NONE}


def _requested(
    server: McpServerParam, toolset: McpToolset | None, told: Sequence[ListedTool] | None
) -> RequestedServer:
    """Every call is trusted: this API has no approvals."""
    pinned = toolset.tools if toolset and toolset.tools is not None else told
    offered, said = ALL, server.tool_configuration
    if toolset is not None:
        offered = toolset.offered
    elif said is not None and said.enabled is False:
        offered = NONE
    elif said is not None and said.allowed_tools is not None:
        offered = ToolFilter(frozenset(said.allowed_tools))
    return RequestedServer(
        server.name,
        server.url,
        with_token({}, server.authorization_token),
        offered=offered,
        trusted=ALL,
        deferred=toolset.deferred if toolset else NONE,
        known=None if pinned is None else tuple(tool.offer for tool in pinned),
        lists_all=True,
    )


def _required(schema: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
    """A deferred tool without a schema takes any object."""
    if schema is None and not info.data.get("defer_loading"):
        raise PydanticCustomError("missing", "Field required")
    return schema


class CustomTool(Cached):
    """With `strict`, the arguments always match the schema."""

    TAG: ClassVar = "custom"

    type: Annotated[str | None, only(None, "custom", instead=DESCRIBES)] = None
    name: Name
    description: Description | None = None
    defer_loading: bool | None = None
    input_schema: Annotated[Schema | None, AfterValidator(_required), Field(validate_default=True)] = None
    strict: Annotated[bool | None, enforces("input_schema")] = None
    input_examples: Annotated[Any, without_effect("tools.input_examples")] = None
    eager_input_streaming: bool | None = None  # arguments are always streamed

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def definition(self) -> FunctionTool:
        schema = ANY_OBJECT if self.input_schema is None else self.input_schema
        return FunctionTool(
            self.name, self.description or "", schema, bool(self.strict), deferred=bool(self.defer_loading)
        )


class SearchTool(Cached):
    """A search over the deferred tools, which this server runs."""

    TAG: ClassVar = "search"

    type: Annotated[str, StringConstraints(pattern=r"^tool_search_tool_(bm25|regex)(_[0-9]{8})?$")]
    name: Literal["tool_search_tool_bm25", "tool_search_tool_regex"]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def search(self) -> ToolSearch:
        return ToolSearch(self.name, "pattern" if "regex" in self.type else "words")


def _present(tool: Any, info: ValidationInfo) -> Any:
    """Hosted tools of other servers are not offered to the model. A request that requires one of them is rejected."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind.startswith(HOSTED) and SPELLABLE.fullmatch(kind):
        note(info, f"tools.{kind}")
        raise PydanticOmit
    return tool


def _tag_of(tool: Any) -> str:
    kind = type_of(tool)
    if isinstance(kind, str) and kind.startswith("tool_search_tool_"):
        return SearchTool.TAG
    return "mcp_toolset" if kind == "mcp_toolset" else CustomTool.TAG


MessagesTool: TypeAlias = Annotated[
    CustomTool | SearchTool | McpToolset, Tagged("", _tag_of), BeforeValidator(_present)
]


class MessagesToolChoice(Lenient):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> MessagesToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("a name is given with the type tool, and only with it")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.name else ()

    @property
    def wanted(self) -> str:
        """auto, none or required, or the name of a tool."""
        return self.name or {"any": "required"}.get(self.type, self.type)


class ToolReferenceBlock(Cached):
    """Part of a tool result: a deferred tool that a search of the client found."""

    type: Literal["tool_reference"]
    tool_name: Name


class NamedTool(Lenient):
    type: Literal["tool_reference"]
    name: Name


class DefinedTool(Lenient):
    type: Literal["tool_definition"]
    definition: CustomTool


ChangedTool: TypeAlias = Annotated[
    NamedTool | DefinedTool, Tagged("A tool must have the type tool_reference or tool_definition.")
]


class ToolAdditionBlock(Cached):
    type: Literal["tool_addition"]
    tool: ChangedTool


class ToolRemovalBlock(Cached):
    type: Literal["tool_removal"]
    tool: NamedTool


class ToolChanges:
    """Follows the changes of a request from its first message to its last."""

    def __init__(self, tools: Iterable[FunctionTool]) -> None:
        self._given = {tool.name: tool for tool in tools}
        self._removed: set[str] = set()
        self._chars = 0  # of the definitions so far

    @property
    def allowed(self) -> frozenset[str] | None:
        """The tools that may be called in the end; None: all that are known."""
        return frozenset(self._given.keys() - self._removed) if self._removed else None

    def referred(self, names: Sequence[str]) -> Addition:
        """What the model reads of tools that are named. Past a limit, no definitions: a request could name a long one a
        thousand times."""
        self._removed.difference_update(names)
        if self._chars > limits.TEXT_CHARS_MAX:
            known = tuple(self._given[name] for name in names if name in self._given)
            return Addition("\n".join(f"The tool {tool.name} can be called." for tool in known), known)
        added = addition(names, self._given)
        self._chars += len(added.text)
        return added

    def made(self, block: ToolAdditionBlock | ToolRemovalBlock) -> Addition:
        """What the model reads of a change."""
        tool = block.tool
        if isinstance(tool, DefinedTool):
            self._given.setdefault(tool.definition.name, tool.definition.definition)
            return self.referred([tool.definition.name])
        if isinstance(block, ToolAdditionBlock):
            return self.referred([tool.name])
        self._removed.add(tool.name)
        return Addition(f"The tool {tool.name} can no longer be called.", ())


class ServerToolUseBlock(Echoed):
    type: Literal["server_tool_use", "mcp_tool_use"]
    id: CallId
    name: ToolName
    input: dict[str, Any]
    server_name: Label | None = None

    def item(self) -> FunctionCall:
        """Under the name by which the model knows it."""
        name = qualified(self.server_name or "", self.name)
        return FunctionCall(self.id, name, json.dumps(self.input, ensure_ascii=False))


class ServerToolResultBlock(Echoed):
    """The result of any hosted tool: of a web search, of code, of an MCP server."""

    TAG: ClassVar = SERVER_RESULT

    type: ResultType
    tool_use_id: CallId
    content: Any = None
    is_error: bool | None = None

    def item(self, changes: ToolChanges) -> FunctionCallOutput:
        if self.type == SEARCHED and (names := _references(self.content)) is not None:
            added = changes.referred(names)
            return FunctionCallOutput(self.tool_use_id, added.text, tools=added.tools)
        text = "\n".join(_readable(self.content))
        if self.is_error and not text.startswith(ERROR):
            text = f"{ERROR}: {text}"
        return FunctionCallOutput(self.tool_use_id, text)


def _references(content: Any) -> list[str] | None:
    """The names of the tools that a search found; None: it failed."""
    match content:
        case {"tool_references": [*references]}:
            names = (each.get("tool_name") for each in references if isinstance(each, dict))
            return [name for name in names if isinstance(name, str)]
    return None


def _readable(value: Any, key: str = "") -> Iterator[str]:
    """The lines of a value: texts as they are, other values with their key. Encrypted ones are left out."""
    if key in UNREADABLE or key.startswith("encrypted"):
        return
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _readable(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _readable(each, key)
    elif value not in (None, ""):
        text = value if isinstance(value, str) else json.dumps(value)
        yield text if key in ("", "text", "content", "data", "title", "stdout") else f"{key}: {text}"
