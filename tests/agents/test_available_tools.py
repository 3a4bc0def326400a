"""Which tools are shown to the model, and which of them it may call."""

from __future__ import annotations

import pytest

from agents.errors import InvalidTurn
from agents.function_tool import FunctionTool
from agents.parser.dialect import Dialect, Format
from agents.toolbox import AvailableTools, Stage, Toolbox, constraint_of
from tests.agents.turns import asked, call, double, run
from tests.scripted import ScriptedModel

PARAMETERS = {"type": "object", "properties": {}}
SAVE, LOAD = (FunctionTool(name, "", PARAMETERS) for name in ("save", "load"))
LIMITED = asked(functions=(SAVE, LOAD), server_tools=("double",), allowed_tools=frozenset({"load"}))
HERMES = Dialect(Format.HERMES)


def shown(offer: AvailableTools) -> list[str]:
    return [schema["function"]["name"] for schema in offer.schemas]


def test_what_is_not_allowed_is_shown_but_cannot_be_called() -> None:
    offer = AvailableTools.of(LIMITED, Toolbox([double]))
    assert shown(offer) == ["double", "save", "load"]
    assert (offer.server, offer.functions, offer.limited) == (frozenset(), frozenset({"load"}), True)


def test_a_model_that_cannot_be_held_is_shown_only_what_is_allowed() -> None:
    offer = AvailableTools.of(LIMITED, Toolbox([double]), Dialect(Format.LLAMA))
    assert (shown(offer), offer.limited) == (["load"], False)


def test_the_grammar_knows_only_what_is_allowed() -> None:
    offer = AvailableTools.of(LIMITED, Toolbox([double]))
    limited = constraint_of(LIMITED, offer, HERMES, Stage(forced=False, calls_max=4, thinking=False))
    assert limited is not None and not limited.trigger
    assert "load" in limited.grammar and "save" not in limited.grammar and "double" not in limited.grammar


@pytest.mark.parametrize("choice", ["teleport", "required"])
def test_a_choice_needs_a_tool_that_is_there(choice: str) -> None:
    with pytest.raises(InvalidTurn):
        AvailableTools.of(asked(tool_choice=choice), Toolbox(()))


async def test_a_call_that_slips_through_is_refused() -> None:
    """The scripted model is not held to grammars."""
    turn = asked("x", server_tools=("double",), functions=(LOAD,), allowed_tools=frozenset({"load"}))
    ran = await run(ScriptedModel([call("double", x=2), "Well."]), turn, [double])
    assert "there is no tool named 'double'" in ran.results[0]
