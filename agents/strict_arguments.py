"""Validates the arguments of strict functions before anybody runs them, once, when a call is complete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agents.function_tool import FunctionTool
from inference.grammar.conformance import Conformance

# Keywords that no grammar enforces.
BEYOND_GRAMMARS = ("uniqueItems", "minProperties", "maxProperties")


class StrictArguments:
    """`enforced`: a grammar holds calls of this dialect to their schemas."""

    def __init__(self, functions: Iterable[FunctionTool] = (), *, enforced: bool = False) -> None:
        self._schemas = {function.name: function.parameters for function in functions if function.strict}
        self._enforced = enforced
        self._known: dict[str, Conformance] = {}

    def may_break(self, name: str) -> bool:
        """Whether a call may turn out not to fit. Then nothing of it is sent before it is complete: what was streamed
        cannot be taken back."""
        return name in self._schemas and not (self._enforced and _is_enforceable(self._schemas[name]))

    def unmet(self, name: str, arguments: str) -> str | None:
        """What the JSON text violates, for the model to read; None if it fits, or if the function is not strict."""
        if name not in self._schemas:
            return None
        if name not in self._known:
            self._known[name] = Conformance(self._schemas[name])
        broken = self._known[name].broken(json.loads(arguments))
        return None if broken is None else f"the arguments of {name} do not fit its schema: {broken}"


def _is_enforceable(schema: Mapping[str, Any]) -> bool:
    text = str(schema)
    return not any(keyword in text for keyword in BEYOND_GRAMMARS)
