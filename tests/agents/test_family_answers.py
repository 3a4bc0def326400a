"""What an answer may be with each family: arguments of the declared types, and as long as it was asked to be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.function_tool import function_schema
from agents.message import FunctionCall, FunctionCallOutput, Message, Reasoning
from agents.parser.dialect import Dialect, Format, choose
from agents.parser.markup import CallFinished
from agents.prompt import assemble
from agents.turn import Turn
from inference.generation import Sampling
from inference.template import ChatTemplate
from tests.agents.turns import TENANT, asked, run, user
from tests.inference.families import FAMILIES
from tests.inference.test_template_probe import described
from tests.scripted import ScriptedModel

ASKED, RESULT = "Which one is meant?", "It is found."
DIGITS = "77812"  # a string for each of these schemas, although it looks like a number
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "$defs": {"Code": {"type": "string"}},
    "properties": {
        "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "listed": {"type": ["string", "null"]},
        "chosen": {"enum": ["10001", DIGITS]},
        "referred": {"$ref": "#/$defs/Code"},
        "absent": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
}
ARGUMENTS = {**dict.fromkeys(("optional", "listed", "chosen", "referred"), DIGITS), "absent": None, "count": 3}
WORDS = 10_000  # of the reasoning and of the answer, a token each: more than twice the budget of an agent's loop


def spoken(family: str) -> tuple[ChatTemplate, Dialect]:
    template = ChatTemplate(FAMILIES[family], bos="<s>", eos="</s>")
    return template, choose(FAMILIES[family], template.capabilities)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_strict_argument_keeps_the_type_that_its_schema_declares(family: str) -> None:
    """A call as the family writes it, read with the schema."""
    template, dialect = spoken(family)
    tools = [function_schema("book", "Books a seat.", PARAMETERS)]
    call = FunctionCall("c", "book", json.dumps(ARGUMENTS))
    turn = Turn(TENANT, (), (user(ASKED), call, FunctionCallOutput("c", RESULT)))
    prompt = "".join(segment.text for segment in template.render(assemble(turn), tools))
    written = prompt.partition(ASKED)[2].partition(RESULT)[0]
    written = (
        written.partition("assistant<|end_header_id|>\n\n")[2] or written
    )  # a call without a mark begins an answer
    parser = dialect.parser(tools)
    (read,) = [event for event in (*parser.feed(written), *parser.finish()) if isinstance(event, CallFinished)]
    assert json.loads(read.arguments) == ARGUMENTS


def long_reply(dialect: Dialect) -> tuple[str, bool]:
    """Reasoning, where the family has any, and an answer; and whether there is reasoning."""
    thought, answer = "hm " * WORDS, "so " * WORDS
    if dialect.format is Format.HARMONY:
        final = f"<|end|><|start|>assistant<|channel|>final<|message|>{answer}"
        return f"<|channel|>analysis<|message|>{thought}{final}", True
    if dialect.format is Format.GEMMA:
        thought = f"thought\n{thought}"  # its label
    if dialect.thoughts:
        return f"{dialect.thoughts.open}{thought}{dialect.thoughts.close}{answer}", True
    return answer, False


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_answer_is_as_long_as_was_asked_with_its_reasoning(family: str) -> None:
    template, dialect = spoken(family)
    reply, thinks = long_reply(dialect)
    model = ScriptedModel([reply], chat_template=FAMILIES[family], capabilities=template.capabilities, piece_chars=3)
    ran = await run(model, asked(sampling=Sampling(max_tokens=3 * WORDS)))
    assert (ran.finished.status, ran.finished.budget) == ("completed", None)
    said = [item.text for item in ran.output if isinstance(item, Message)]
    thought = [item.text for item in ran.output if isinstance(item, Reasoning)]
    assert [text.split().count("so") for text in said] == [WORDS]
    assert [text.split().count("hm") for text in thought] == ([WORDS] if thinks else [])


def test_the_table_says_what_was_tried() -> None:
    told = [line.removesuffix(" |").split(" | ")[-2:] for line in described()]
    tried = {True: "20,000 tokens, half of them reasoning", False: "10,000 tokens"}
    assert told == [["types kept", tried[long_reply(spoken(family)[1])[1]]] for family in FAMILIES]
