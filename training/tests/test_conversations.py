"""Invented conversations are in the platform's own format, and right."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from uuid import UUID

import pytest

from agents.parser.deltas import CallBroken, CallFinished, ParserEvent
from agents.parser.hermes import HermesParser
from agents.tool import ToolContext
from agents.tools import builtin_toolbox
from inference.bundled import CHAT_MODEL
from inference.llama import LlamaModel
from inference.prompt import ChatMessage, ToolCall
from inference.template import ChatTemplate
from training.conversations import builtin, lexicon
from training.conversations.generator import KINDS, Generator
from training.conversations.names import Names, held_out
from training.conversations.passages import NOT_FOUND, passages
from training.conversations.scene import OPENING, Scene
from training.tests.conftest import generator

EACH = 40  # conversations of a kind: every turn of the dialogue comes up in them


@pytest.fixture(scope="module")
def template() -> Iterator[ChatTemplate]:
    weights = LlamaModel.load(CHAT_MODEL, weights=False)
    yield ChatTemplate(weights.chat_template, bos=weights.bos_text, eos=weights.eos_text)
    weights.close()


def conversations(generator: Generator) -> Iterator[Scene]:
    for kind in dict.fromkeys(KINDS):
        for _ in range(EACH):
            yield generator.conversation(kind, turns=3)


def written(scene: Scene) -> Iterator[tuple[int, ChatMessage]]:
    return ((i, message) for i, message in enumerate(scene.messages) if message.role == "assistant")


def test_a_prompt_reads_as_the_bundled_models_template_writes_it(invented: Generator, template: ChatTemplate) -> None:
    for scene in conversations(invented):
        for at, _ in written(scene):
            rendered = "".join(part.text for part in template.render(scene.messages[:at], scene.schemas))
            assert scene.prompt(at) == rendered


def test_the_pieces_of_a_conversation_join_to_the_prompt_of_its_next_turn(invented: Generator) -> None:
    for scene in conversations(invented):
        whole = "".join(piece.text for piece in scene.pieces())
        scene.user("More")
        assert scene.prompt(len(scene.messages)) == f"{whole}<|im_start|>user\nMore<|im_end|>\n{OPENING}"


def test_what_is_learnt_is_read_by_the_platforms_parser_as_it_was_meant(invented: Generator) -> None:
    for scene in conversations(invented):
        expected = [message for i, message in written(scene) if i not in scene.unlearnt]
        learnt = [piece.text.removesuffix("<|im_end|>") for piece in scene.pieces() if piece.learnt]
        assert len(learnt) == len(expected)
        for text, message in zip(learnt, expected, strict=True):
            events = read(text)
            assert not [event for event in events if isinstance(event, CallBroken)]
            calls = [ToolCall(event.name, event.arguments) for event in events if isinstance(event, CallFinished)]
            assert calls == list(message.tool_calls)


def read(text: str) -> Sequence[ParserEvent]:
    parser = HermesParser()
    return [*parser.feed(text), *parser.finish()]


def test_every_call_fits_the_schema_of_its_tool(invented: Generator) -> None:
    for scene in conversations(invented):
        tools = {schema["function"]["name"]: schema["function"]["parameters"] for schema in scene.schemas}
        for _, message in written(scene):
            for call in message.tool_calls:
                parameters, arguments = tools[call.name], json.loads(call.arguments)
                assert set(parameters["required"]) <= set(arguments) <= set(parameters["properties"])
                for name, value in arguments.items():
                    assert value in parameters["properties"][name].get("enum", [value])


@pytest.mark.parametrize("tool", [builtin.CALCULATOR, builtin.CONVERT_UNITS])
async def test_results_are_what_the_servers_tools_return(tool: builtin.BuiltIn, invented: Generator) -> None:
    """Or the number alone, as other calculators return it."""
    toolbox, context = builtin_toolbox(None), ToolContext(UUID(int=0))
    for _ in range(50):
        request = tool.request(invented.names)
        run = toolbox.run(request.call.name, request.call.arguments, context, timeout_s=30, result_chars=10_000)
        output = (await run).output
        assert request.result in (output, str(json.loads(output)["result"]))


async def test_errors_are_what_the_servers_tools_say(invented: Generator) -> None:
    toolbox, context = builtin_toolbox(None), ToolContext(UUID(int=0))
    requests = [builtin.failed(invented.names)[1] for _ in range(30)]
    runs = (toolbox.run(r.call.name, r.call.arguments, context, timeout_s=30, result_chars=10_000) for r in requests)
    assert [result.output for result in await asyncio.gather(*runs)] == [request.result for request in requests]


def test_an_answer_from_documents_is_a_sentence_of_the_passage_it_cites(invented: Generator) -> None:
    for _ in range(300):
        found = passages(invented.names, invented.prose)
        asked = found.ask()
        for sentence, number in re.findall(r"(?:^| )(.+?) \[(\d)\]\.", asked.answer):
            assert sentence in found.passages[int(number) - 1].sentences
        assert asked.answerable or asked.answer == NOT_FOUND


def test_a_question_without_an_answer_is_not_answered_by_a_fact_of_its_passages(invented: Generator) -> None:
    for _ in range(300):
        found = passages(invented.names, invented.prose)
        asked = found.ask(answerable=False)
        assert asked.question not in [q for p in found.passages for fact in p.facts for q in fact.questions]


def test_no_word_of_the_evaluation_is_used_in_training() -> None:
    train, test = (Names("a seed", split, ["one", "two", "three"]) for split in ("train", "test"))
    for make in ("syllables", "blend", "attribute"):
        words = {getattr(train, make)() for _ in range(500)}
        assert not words & {getattr(test, make)() for _ in range(500)}
        assert not [word for word in words if held_out(word)]


def test_the_pieces_of_held_out_words_are_seen_in_training() -> None:
    whole = [word for word in lexicon.NOUNS if held_out(word) and len(word) > 5]
    train, test = (Names("a seed", split, lexicon.NOUNS) for split in ("train", "test"))
    words = {train.word() for _ in range(20_000)}
    assert whole and not words & set(whole)
    assert all(any(word.endswith(piece[-3:]) for word in words) for piece in whole)
    assert {test.word() for _ in range(500)} <= set(lexicon.NOUNS)


def test_no_document_of_the_evaluation_is_read_in_training() -> None:
    train, test = generator(split="train"), generator(split="test")
    assert train.prose and test.prose
    assert not {document.title for document in train.prose} & {document.title for document in test.prose}


def test_the_platforms_own_documentation_is_read_in_training_alone() -> None:
    train, test = ([document.title for document in generator(split=split).prose] for split in ("train", "test"))
    assert "Handbook > Lamps" in train
    assert "Handbook > Lamps" not in test


def test_the_same_seed_writes_the_same_conversations_in_every_process() -> None:
    told = (
        "from training.tests.conftest import generator; made = generator();"
        "print([list(made.conversation('invented', 2).schemas) for _ in range(60)])"
    )
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    one, other = (subprocess.check_output([sys.executable, "-c", told], env=each) for each in environments)
    assert one == other


def test_the_same_seed_writes_the_same_conversations() -> None:
    one, other, third = (generator(seed).conversation("mixed", 5) for seed in ("a", "a", "b"))
    assert one.messages == other.messages != third.messages
