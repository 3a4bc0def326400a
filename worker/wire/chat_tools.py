"""Tools of a chat completion: functions that the client runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from agents.function_tool import FunctionTool
from worker.wire import limits
from worker.wire.function_tools import NO_PARAMETERS, Description, Schema, enforceable
from worker.wire.strict import Name, Strict, only, up_to


class FunctionDefinition(Strict):
    name: Name
    description: Description | None = None
    parameters: Schema | None = None
    strict: Annotated[bool | None, AfterValidator(enforceable)] = None


class ChatTool(Strict):
    type: Annotated[str, only("function")]
    function: FunctionDefinition

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def definition(self) -> FunctionTool:
        function = self.function
        parameters = function.parameters or NO_PARAMETERS
        return FunctionTool(function.name, function.description or "", parameters, bool(function.strict))


class NamedFunction(Strict):
    name: Name


class FunctionReference(Strict):
    type: Annotated[str, only("function")]
    function: NamedFunction


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionReference], up_to(limits.TOOLS_MAX, least=1)]


class ChatToolChoice(Strict):
    """none, auto, required, one function, or a list of allowed functions."""

    type: Annotated[str, only("function", "mode", "allowed_tools")]
    mode: Literal["none", "auto", "required"] | None = None
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _is_one_of_the_forms(self) -> ChatToolChoice:
        if [name for name in ("mode", "function", "allowed_tools") if getattr(self, name) is not None] != [self.type]:
            raise ValueError("choose none, auto, required, a function by its name, or allowed_tools")
        return self

    @property
    def wanted(self) -> str:
        """auto, none or required, or the name of a function."""
        if self.function:
            return self.function.name
        return self.allowed_tools.mode if self.allowed_tools else self.mode or "auto"

    @property
    def allowed(self) -> frozenset[str] | None:
        """Names of the only functions that may be called; None: all."""
        return frozenset(each.function.name for each in self.allowed_tools.tools) if self.allowed_tools else None

    @property
    def names(self) -> frozenset[str]:
        """All functions that are named, to be checked against those of the request."""
        return self.allowed or (frozenset({self.function.name}) if self.function else frozenset())
