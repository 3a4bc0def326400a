"""Tools that the public contract defines and the client runs: shells, patches, and its own search for tools."""

from __future__ import annotations

from typing import Any, Literal

from agents.call_shape import CallForm, CallShape
from agents.function_tool import FunctionTool
from agents.turn import ToolSearch
from worker.wire.function_tools import Description, Schema
from worker.wire.strict import Strict, Unsupported

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


def _parameters(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _function(form: CallForm, description: str, parameters: dict[str, Any]) -> FunctionTool:
    """Always strict: a call that does not fit has no item."""
    return FunctionTool(form, description, parameters, True, CallShape(form))


class _Builtin(Strict):
    type: str

    @property
    def name(self) -> str:
        return self.type

    @property
    def names(self) -> tuple[str, ...]:
        return (self.type,)

    def echo(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class LocalShellTool(_Builtin):
    """The client runs a program."""

    type: Literal["local_shell"]

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        parameters = _parameters(LOCAL_SHELL, "command")
        return (_function("local_shell", "Run a program on the computer of the user.", parameters),)


class LocalEnvironment(Strict):
    type: Literal["local"]
    skills: Unsupported = None


class ShellTool(_Builtin):
    """The client runs commands in a shell. There are no containers here."""

    type: Literal["shell"]
    environment: LocalEnvironment | None = None
    allowed_callers: Unsupported = None

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        parameters = _parameters(SHELL, "commands")
        return (_function("shell", "Run commands in a shell on the computer of the user.", parameters),)


class ApplyPatchTool(_Builtin):
    """The client changes a file."""

    type: Literal["apply_patch"]
    allowed_callers: Unsupported = None

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        parameters = _parameters(PATCH, "type", "path", "diff")
        return (_function("apply_patch", "Create, change or delete a file of the user.", parameters),)


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
