"""The configuration of MCP servers, whose tools this worker offers in addition to its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from agents.function_tool import function_schema
from agents.tool import ToolContext, ToolError

SERVERS_MAX, WORDS_MAX, TOOLS_MAX = 16, 64, 128
URL_CHARS_MAX = 2000

# Without an underscore: it ends the name of the server in the name of a tool.
ServerName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{0,23}$")]
Word: TypeAlias = Annotated[str, StringConstraints(max_length=4096)]


class ServerTable(BaseModel):
    """One MCP server: a command that uses stdio, or the URL of a server with streamable HTTP.

    Environment and headers may hold secrets. `tools` are the names of the tools to offer, as the server calls them;
    None: all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    command: Annotated[list[Word], Field(min_length=1, max_length=WORDS_MAX)] | None = None
    environment: Annotated[dict[str, Word], Field(max_length=WORDS_MAX, repr=False)] = Field(default_factory=dict)
    folder: Word | None = None
    url: Annotated[str, StringConstraints(pattern=r"^https?://\S+$", max_length=URL_CHARS_MAX)] | None = None
    headers: Annotated[dict[str, Word], Field(max_length=WORDS_MAX, repr=False)] = Field(default_factory=dict)
    tools: Annotated[list[Word], Field(max_length=TOOLS_MAX)] | None = None

    @model_validator(mode="after")
    def _is_one_kind(self) -> ServerTable:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a command or a url")
        return self

    def offers(self, tool: str) -> bool:
        return self.tools is None or tool in self.tools


@dataclass(frozen=True, slots=True)
class AbsentTool:
    """The placeholder of a tool that an agent names while its server is unreachable or does not have it."""

    name: str
    server: str
    idempotent: bool = False
    cache_s: float = 0.0

    @property
    def schema(self) -> dict[str, Any]:
        description = f"Not available now: the server '{self.server}' cannot be reached or has no such tool."
        return function_schema(self.name, description, {"type": "object", "properties": {}})

    async def run(self, arguments: str, context: ToolContext) -> str:
        raise ToolError(f"the server '{self.server}' cannot be reached or has no such tool")
