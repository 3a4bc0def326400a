"""Accepted answers among what is invented."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from training.accepted import Accepted, scenes
from training.batches import LEARNT
from training.bundle import bundled_vocabulary
from training.tests.scales import Scales

TOOL = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}
LINES = [
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Given."},
            {"role": "user", "content": "What is it?"},
            {"role": "assistant", "content": "It is red."},
        ]
    },
    {
        "messages": [
            {"role": "user", "content": "In Lima?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
        ],
        "tools": [TOOL],
    },
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "accepted.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_the_last_message_is_learnt_and_what_was_said_before_is_given(file: Path) -> None:
    said, called = scenes(file)
    assert [piece.text for piece in said.pieces() if piece.learnt] == ["It is red.<|im_end|>"]
    (learnt,) = [piece.text for piece in called.pieces() if piece.learnt]
    assert learnt == '<tool_call>\n{"name": "weather", "arguments": {"city": "Lima"}}\n</tool_call><|im_end|>'
    text = "".join(piece.text for piece in called.pieces())
    assert text.startswith("<|im_start|>system\nYou are a helpful assistant.") and '"name": "weather"' in text


def test_a_share_of_the_rows_is_made_of_them_and_none_of_those_held_out(file: Path) -> None:
    tokenizer, source = bundled_vocabulary().tokenizer(), Accepted(file, 0.5, Scales())
    rows = pickle.loads(pickle.dumps(source))("a", "train")
    texts = [tokenizer.decode(rows.row(tokenizer, 400)[0], skip_special_tokens=False) for _ in range(60)]
    assert 15 <= sum("It is red." in text or "Lima" in text for text in texts) <= 45
    held_out = source("a", "test")
    assert not any("Lima" in tokenizer.decode(held_out.row(tokenizer, 400)[0]) for _ in range(20))
    ids, marks = Accepted(file, 1.0, Scales())("a", "train").row(tokenizer, 400)
    assert len(ids) == len(marks) <= 400 and LEARNT in marks


@pytest.mark.parametrize("line", ["[]", "{", '{"messages": [{"role": "user", "content": "Hi"}]}'])
def test_a_line_that_is_no_conversation_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(LINES[0]) + f"\n{line}\n")
    with pytest.raises(ValueError, match=r"bad\.jsonl:2: no conversation with an answer"):
        scenes(path)
