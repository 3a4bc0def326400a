"""MCP servers in a request, and the items of their tools as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from agents.function_tool import FunctionTool, qualified
from agents.mcp_config import TOOLS_MAX, URL_CHARS_MAX, WORDS_MAX
from agents.message import Item, new_id
from agents.origin import origin_of
from agents.payload import CALL_ID, from_payload
from agents.requested_server import ALL, NONE, RequestedServer, ToolFilter
from worker.wire import limits
from worker.wire.function_tools import Description
from worker.wire.strict import AllowedCallers, CallId, Echoed, Id, ItemStatus, Strict, Text, Unsupported, up_to

REDACTED = "<redacted>"
# Headers that belong to the connection, or to the protocol.
OURS = frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "upgrade"})
Label: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
ToolName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=limits.NAME_CHARS_MAX)]
ToolNames: TypeAlias = Annotated[list[ToolName], up_to(TOOLS_MAX)]
HeaderValue: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e][\x20-\x7e]*$", max_length=4096)]
HeaderName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}$")]


def _of_others(headers: dict[str, str]) -> dict[str, str]:
    if taken := sorted(name for name in headers if name.lower() in OURS or name.lower().startswith("mcp-")):
        raise ValueError(f"the header {taken[0]} belongs to the connection")
    return headers


def _address(url: str) -> str:
    origin_of(url)
    return url


ServerUrl: TypeAlias = Annotated[str, StringConstraints(max_length=URL_CHARS_MAX), AfterValidator(_address)]
Headers: TypeAlias = Annotated[
    dict[HeaderName, HeaderValue], Field(max_length=WORDS_MAX - 1), AfterValidator(_of_others)
]


class StoredItem(Echoed):
    """An item from an earlier answer, which becomes what it would be if it had been stored, under a new id."""

    PREFIX: ClassVar = "fc"  # of ids

    @property
    def payload(self) -> dict[str, Any]:
        return {**self.model_dump(exclude_none=True), "status": "completed", "id": new_id(self.PREFIX)}

    def item(self) -> Item:
        return from_payload(self.payload)


class ToolFilterParam(Strict):
    tool_names: ToolNames | None = None
    read_only: bool | None = None

    @model_validator(mode="after")
    def _says_which(self) -> ToolFilterParam:
        if self.tool_names is None and self.read_only is None:
            raise ValueError("give tool_names or read_only")
        return self

    @property
    def filter(self) -> ToolFilter:
        return ToolFilter(None if self.tool_names is None else frozenset(self.tool_names), self.read_only)


class Approval(Strict):
    always: ToolFilterParam | None = None
    never: ToolFilterParam | None = None


class McpTool(Strict):
    """The tools of an MCP server that the operator allows. A tool that needs approval is not run before the user gives
    it: that is the default."""

    type: Literal["mcp"]
    server_label: Label
    server_url: Annotated[ServerUrl, Field(repr=False)]
    server_description: Description | None = None
    allowed_tools: ToolNames | ToolFilterParam | None = None
    require_approval: Literal["always", "never"] | Approval | None = None
    headers: Annotated[Headers | None, Field(repr=False)] = None
    authorization: Annotated[HeaderValue | None, Field(repr=False)] = None
    defer_loading: bool | None = None
    allowed_callers: AllowedCallers = None
    connector_id: Unsupported = None
    tunnel_id: Unsupported = None

    @property
    def names(self) -> tuple[str, ...]:
        """What stands for all of its tools, whose names are not known yet."""
        return (qualified(self.server_label, ""),)

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        return ()

    @property
    def server(self) -> RequestedServer:
        trusted, asked = NONE, NONE
        if isinstance(self.require_approval, Approval):
            trusted = self.require_approval.never.filter if self.require_approval.never else NONE
            asked = self.require_approval.always.filter if self.require_approval.always else NONE
        elif self.require_approval == "never":
            trusted = ALL
        offered = self.allowed_tools
        return RequestedServer(
            self.server_label,
            self.server_url,
            with_token(self.headers or {}, self.authorization),
            self.server_description or "",
            ToolFilter(frozenset(offered)) if isinstance(offered, list) else offered.filter if offered else ALL,
            trusted,
            asked,
            ALL if self.defer_loading else NONE,
        )

    def echo(self) -> dict[str, Any]:
        """Without secrets, which may be in the URL too: a response is stored."""
        shown = self.model_dump(exclude_none=True, exclude={"server_url", "headers", "authorization"})
        url = origin_of(self.server_url)
        shown["server_url"] = self.server_url if self.server_url in (url, f"{url}/") else f"{url}/{REDACTED}"
        headers = {"headers": dict.fromkeys(self.headers, REDACTED)} if self.headers else {}
        return {**shown, **headers, "require_approval": shown.get("require_approval", "always")}


def with_token(headers: dict[str, str], token: str | None) -> dict[str, str]:
    """The headers with an access token, which comes in place of one among them."""
    if token is None:
        return headers
    others = {name: value for name, value in headers.items() if name.lower() != "authorization"}
    return {**others, "Authorization": f"Bearer {token}"}


class McpListToolsItem(StoredItem):
    """What the model is told are the tools that the server has now; these are only compared with them."""

    PREFIX: ClassVar = "mcpl"

    type: Literal["mcp_list_tools"]
    server_label: Label
    tools: Annotated[list[dict[str, Any]], up_to(limits.TOOLS_MAX)]
    error: Any = None
    id: Id | None = None


class _McpItem(StoredItem):
    server_label: Label
    name: ToolName
    arguments: Annotated[str, StringConstraints(max_length=limits.ARGUMENTS_CHARS_MAX)]
    status: ItemStatus | Literal["calling"] = None


class McpCallItem(_McpItem):
    PREFIX: ClassVar = "mcp"

    type: Literal["mcp_call"]
    id: CallId | None = None
    output: Text | None = None
    error: Any = None
    approval_request_id: CallId | None = None
    firsttoken_joined: bool = False

    @property
    def payload(self) -> dict[str, Any]:
        return {**super().payload, "output": self.output or ""}


class McpApprovalRequestItem(_McpItem):
    PREFIX: ClassVar = "mcpr"

    type: Literal["mcp_approval_request"]
    id: CallId
    firsttoken_call_id: CallId | None = None
    firsttoken_joined: bool = False

    @property
    def payload(self) -> dict[str, Any]:
        return {**super().payload, CALL_ID: self.firsttoken_call_id or self.id}


class McpApprovalResponseItem(StoredItem):
    """The decision of the user. A call that is allowed runs before the next answer."""

    PREFIX: ClassVar = "fco"
    model_config = ConfigDict(extra="forbid")

    type: Literal["mcp_approval_response"]
    approval_request_id: CallId
    approve: bool
    reason: Annotated[str, StringConstraints(max_length=limits.DESCRIPTION_CHARS_MAX)] | None = None
    id: Id | None = None
    status: ItemStatus = None


McpItem: TypeAlias = McpListToolsItem | McpCallItem | McpApprovalRequestItem | McpApprovalResponseItem
