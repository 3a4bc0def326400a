"""How a call is told to the caller: as a function call, or as an item of a built-in tool of the public APIs."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

# Of functions. `mcp__server__tool`, as coding agents name the tools of their servers, is often longer than 64. 128 is
# the limit of Anthropic's API.
NAME_CHARS_MAX = 128

CallForm: TypeAlias = Literal[
    "function", "custom", "tool_search", "local_shell", "shell", "apply_patch", "mcp", "mcp_approval"
]


class CallShape(NamedTuple):
    """To the model every tool is a function. Its name begins with the `namespace`, if there is one: that of a tool of
    an MCP server with the label of its server. A call that needs approval is the caller's, who approves it."""

    form: CallForm = "function"
    namespace: str = ""
    by_server: bool = False  # the server runs it, not the caller


PLAIN = CallShape()
SERVER_SEARCH = CallShape("tool_search", by_server=True)


def qualified(namespace: str, name: str) -> str:
    """The name by which a model calls a tool of a namespace. Those of MCP servers end with the separator already."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def bare(namespace: str, name: str) -> str:
    """The inverse of `qualified`."""
    return name.removeprefix(qualified(namespace, "")) if namespace else name
