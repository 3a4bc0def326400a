"""The tool of the task as an MCP server on standard input and output: how a worker gets external tools."""

from __future__ import annotations

import asyncio

from mcp.server import MCPServer

from benchmarks.agent_loop.task import DESCRIPTION, METHOD, RESULT, SERVER, TOOL_S

server = MCPServer(SERVER)


async def find(query: str) -> str:
    await asyncio.sleep(TOOL_S)
    return RESULT


server.add_tool(find, name=METHOD, description=DESCRIPTION)

if __name__ == "__main__":
    server.run()
