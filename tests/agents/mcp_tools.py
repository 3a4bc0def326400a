"""An MCP server for the tests, run as a command (stdio) or, given a port, over HTTP."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("tools")


@server.tool()
def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@server.tool()
def refuse() -> str:
    """Always fail."""
    raise ToolError("no room is free")


@server.tool()
def die() -> str:
    """End the server in the middle of a call."""
    os._exit(1)


@server.tool(name="Wait-Long")
def wait() -> str:
    """Take longer than anybody waits."""
    time.sleep(60)
    return "done"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
