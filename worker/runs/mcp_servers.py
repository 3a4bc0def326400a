"""The MCP servers that requests may name: those of the origins that the operator allows, and the key of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agents.mcp_config import SERVERS_MAX
from agents.origin import origins_of
from agents.requested_server import RequestedServer, RequestedServers
from agents.turn import TurnServer
from inference.trace import Trace
from worker.auth.principal import Principal
from worker.errors import ApiError


@dataclass(frozen=True, slots=True)
class McpServers:
    """`private` origins may be on this machine or in its networks, `public` ones may not. `servers`: None if there are
    neither."""

    servers: RequestedServers | None = None
    public: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()

    async def opened(
        self, principal: Principal, asked: Mapping[str, RequestedServer], trace: Trace
    ) -> tuple[TurnServer, ...]:
        """The servers of a request by the parameters that name them, with their tools. Raises ApiError."""
        if not asked:
            return ()
        if len(asked) > SERVERS_MAX:
            message = f"A request may use at most {SERVERS_MAX} MCP servers."
            raise ApiError(400, message, param=list(asked)[SERVERS_MAX], code="array_above_max_length")
        allowed = [self._allowed(principal, param, server) for param, server in asked.items()]
        assert self.servers is not None
        return await self.servers.opened(principal.tenant_id, allowed, trace)

    def _allowed(self, principal: Principal, param: str, server: RequestedServer) -> RequestedServer:
        origin, of_key = server.origin, principal.bounds.mcp_origins if principal.bounds else None
        if origin not in self.public | self.private or (of_key is not None and origin not in origins_of(of_key)):
            who = "your API key" if of_key is not None else "the operator of this server"
            message = f"Requests may not use MCP servers at {origin}: {who} does not allow it."
            raise ApiError(403, message, param=param, code="mcp_server_not_allowed")
        return replace(server, is_private=origin in self.private)
