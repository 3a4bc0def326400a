"""Tokens of generated turns are given out for the very message, model and text that they came from."""

from __future__ import annotations

import pytest

from inference import generated_tokens as turns_module
from inference.generated_tokens import TOKEN_BYTES, TURN_BYTES, GeneratedTokens
from inference.prompt import ChatMessage, ToolCall

# Tokens 0 to 127 are characters; 128 is silent, 129 a mark of calls, 130 half of a character.
PIECES = [bytes([n]) for n in range(128)] + [b"", b"<tool_call>", b"\xc3"]
SILENT, MARK, HALF = 128, 129, 130
MODEL, OTHER_MODEL = b"m" * 32, b"o" * 32
CALL = ChatMessage("assistant", "", (ToolCall("add", '{"a": 1}'),))
CALL_IDS = (MARK, *b'{"name": "add", "arguments": {"a": 1}}')


def said(text: str) -> ChatMessage:
    return ChatMessage("assistant", text)


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def known(*texts: str) -> GeneratedTokens:
    turns = GeneratedTokens(PIECES, MODEL)
    for text in texts:
        turns.put(said(text), ids(text))
    return turns


def restarted(turns: GeneratedTokens, fingerprint: bytes = MODEL, pieces: list[bytes] = PIECES) -> GeneratedTokens:
    after = GeneratedTokens(pieces, fingerprint)
    after.load(turns.dump())
    return after


def test_a_turn_has_the_tokens_it_was_generated_with() -> None:
    turns = known("hello")
    turns.put(CALL, CALL_IDS)
    turns.put(said("a b"), ids(" a b\n"))  # white space around it is not shown
    assert (turns.get(said("hello")), turns.get(CALL), turns.get(said("a b"))) == (
        ids("hello"),
        CALL_IDS,
        ids(" a b\n"),
    )


def test_a_turn_with_thoughts_has_its_tokens_too() -> None:
    turns, thought = known(""), ChatMessage("assistant", "hello", reasoning="no")
    turns.put(thought, (MARK, *ids("no "), MARK, *ids("hello")))
    assert turns.get(thought) == (MARK, *ids("no "), MARK, *ids("hello"))
    turns.put(other := ChatMessage("assistant", "no", reasoning="hello"), (MARK, *ids("no "), MARK, *ids("hello")))
    assert turns.get(other) is None


@pytest.mark.parametrize(
    "other",
    [
        said("hello!"),
        ChatMessage("user", "hello"),
        ChatMessage("assistant", "hello", reasoning="hm"),
        ChatMessage("assistant", "hello", (ToolCall("add", "{}"),)),
    ],
)
def test_another_message_has_none(other: ChatMessage) -> None:
    assert known("hello").get(other) is None


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (said("hello"), (*ids("hello"), SILENT)),
        (said("hello"), ids("hello you")),
        (said("<tool_call>"), (MARK,)),
        (said("é"), (HALF,)),
        (said("hello"), (*ids("hello"), len(PIECES))),
        (said("hello"), (*ids("hello"), -1)),
        (said(""), ()),
        (ChatMessage("assistant", "", (ToolCall("unreadable_call", "{}"),)), CALL_IDS),
        (ChatMessage("assistant", "so", (ToolCall("add", "{}"),)), (*ids("no "), *CALL_IDS)),
    ],
    ids=[
        "silent",
        "more text",
        "a mark in text",
        "half a character",
        "unknown",
        "negative",
        "none",
        "no name",
        "other",
    ],
)
def test_tokens_that_are_not_the_text_are_not_kept(message: ChatMessage, tokens: tuple[int, ...]) -> None:
    turns = GeneratedTokens(PIECES, MODEL)
    turns.put(message, tokens)
    assert (len(turns), turns.get(message)) == (0, None)


def test_a_turn_that_is_used_outlives_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "BYTES_MAX", 2 * (TURN_BYTES + 3 * TOKEN_BYTES))
    turns = known("one", "two")
    assert turns.get(said("one"))
    turns.put(said("six"), ids("six"))
    assert [turns.get(said(text)) is not None for text in ("one", "two", "six")] == [True, False, True]


def test_the_tokens_of_one_tenant_stand_in_no_prompt_of_another() -> None:
    turns = GeneratedTokens(PIECES, MODEL)
    turns.put(said("hello"), ids(" hello "), salt="a")
    turns.put(said("hello"), ids("hello"), salt="b")
    assert [turns.get(said("hello"), salt=salt) for salt in "abc"] == [ids(" hello "), ids("hello"), None]


def test_the_number_of_turns_is_bounded_however_short_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "BYTES_MAX", 3 * (TURN_BYTES + TOKEN_BYTES))
    assert len(known(*"abcdef")) == 3


def test_a_restart_keeps_the_turns_and_the_order_of_their_use() -> None:
    turns = known("one", "two")
    turns.put(CALL, CALL_IDS)
    assert turns.get(said("one"))
    after = restarted(turns)
    assert after.dump() == turns.dump()
    assert [after.get(message) is not None for message in (said("one"), said("two"), CALL)] == [True] * 3


def test_another_model_takes_nothing_over_and_leaves_it() -> None:
    between = restarted(known("hello"), OTHER_MODEL)
    assert between.get(said("hello")) is None
    assert restarted(between).get(said("hello")) == ids("hello")


def test_what_was_read_is_given_out_only_where_it_spells_the_message() -> None:
    silent = [b"" if piece == b"o" else piece for piece in PIECES]
    forged = restarted(known("hello"), pieces=silent)
    assert forged.get(said("hello")) is None
    assert len(forged) == 0


def test_what_is_not_known_is_looked_for_once_and_found_under_the_same_digest_elsewhere() -> None:
    here, there = known("hello"), known()
    asked = ChatMessage("user", "hello")
    assert here.missing([asked, said("hello")]) == []
    (digest,) = there.missing([asked, said("hello"), said("hello")])
    assert there.missing([said("hello")]) == []
    assert here.put(said("hello"), ids("hello")) == digest != here.put(said("hello"), ids("hello"), salt="another")
    there.load([(digest, ids("hello"))])
    assert there.get(said("hello")) == ids("hello")
    assert here.put(said("hello"), ids("other")) is None
