"""Tools of a chat completion: functions that the caller runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from agents.turn import FunctionTool
from worker.wire.items import Name
from worker.wire.strict import Strict, only
from worker.wire.tools import NO_PARAMETERS, Description, Schema, enforceable


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
    def definition(self) -> FunctionTool:
        function = self.function
        parameters = function.parameters or NO_PARAMETERS
        return FunctionTool(function.name, function.description or "", parameters, bool(function.strict))


class NamedFunction(Strict):
    name: Name


class ChatToolChoice(Strict):
    """none, auto, required, or one function."""

    type: Annotated[str, only("function", "mode")]
    mode: Literal["none", "auto", "required"] | None = None
    function: NamedFunction | None = None

    @model_validator(mode="after")
    def _is_one_of_the_forms(self) -> ChatToolChoice:
        if (self.mode is None) == (self.function is None):
            raise ValueError("choose none, auto, required or a function by its name")
        return self

    @property
    def wanted(self) -> str:
        return self.function.name if self.function else self.mode or "auto"
