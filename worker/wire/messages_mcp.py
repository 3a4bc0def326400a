"""MCP servers of the Messages API: where they are, and which of their tools a message may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from agents.call_shape import qualified
from agents.mcp_config import SERVERS_MAX, TOOLS_MAX
from agents.requested_server import ALL, NONE, RequestedServer, ToolFilter
from worker.wire.ignored import without_effect
from worker.wire.mcp import HeaderValue, Label, ServerUrl, ToolName, ToolNames, with_token
from worker.wire.strict import Lenient, Unsupported, up_to


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


class McpToolset(Lenient):
    """The tools of a server of `mcp_servers`."""

    type: Literal["mcp_toolset"]
    mcp_server_name: Label
    default_config: ToolConfig = ToolConfig()
    configs: Annotated[dict[ToolName, ToolConfig], Field(max_length=TOOLS_MAX)] | None = None
    tools: Unsupported = None
    cache_control: Annotated[Any, without_effect("cache_control")] = None

    @property
    def names(self) -> tuple[str, ...]:
        """What stands for all of its tools, whose names are not known yet."""
        return (qualified(self.mcp_server_name, ""),)

    @property
    def offered(self) -> ToolFilter:
        configs = {name: config.enabled for name, config in (self.configs or {}).items()}
        return _where(configs, default=self.default_config.enabled is not False)

    @property
    def deferred(self) -> ToolFilter:
        configs = {name: config.defer_loading for name, config in (self.configs or {}).items()}
        return _where(configs, default=bool(self.default_config.defer_loading))


def _where(configs: Mapping[str, bool | None], *, default: bool) -> ToolFilter:
    """The tools that this configuration, or the default, says yes to."""
    if default:
        return ToolFilter(but=frozenset(name for name, said in configs.items() if said is False))
    return ToolFilter(frozenset(name for name, said in configs.items() if said))


def requested(servers: Sequence[McpServerParam], toolsets: Sequence[McpToolset]) -> dict[str, RequestedServer]:
    """The servers by the parameters that name them. Raises ValueError for a toolset without a server."""
    sets = {each.mcp_server_name: each for each in toolsets}
    if missing := sorted(sets.keys() - {server.name for server in servers}):
        raise ValueError(f"there is no MCP server named '{missing[0]}' in mcp_servers")
    all = {f"mcp_servers[{at}].url": _requested(server, sets.get(server.name)) for at, server in enumerate(servers)}
    return {param: server for param, server in all.items() if server.offered != NONE}


def _requested(server: McpServerParam, toolset: McpToolset | None) -> RequestedServer:
    """Every call is trusted: this API has no approvals."""
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
    )
