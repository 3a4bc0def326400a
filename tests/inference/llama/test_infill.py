"""Filling in the middle, with a vocabulary that has tokens for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import gguf
import pytest

from inference.bundled import CHAT_MODEL
from inference.config import EngineConfig
from inference.llama import LlamaModel
from inference.model import ChatModel
from tests.inference.variants import KINDS, TOKENS, fact, write_variant

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model, three of whose last tokens are such marks."""
    tokens, kinds = list(fact(CHAT_MODEL, TOKENS)), list(fact(CHAT_MODEL, KINDS))
    places = [at for at, kind in enumerate(kinds) if kind == gguf.TokenType.NORMAL][-3:]
    for at, mark in zip(places, MARKS, strict=True):
        tokens[at], kinds[at] = mark, gguf.TokenType.CONTROL
    target = tmp_path_factory.mktemp("models") / "coder.gguf"
    write_variant(CHAT_MODEL, target, {TOKENS: tokens, KINDS: kinds})
    return target


async def test_what_stands_on_both_sides_is_in_the_prompt_and_marks_in_it_are_text(coder: Path) -> None:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(model_path=coder, parallel=1, resident=0))
    await model.start()
    try:
        segments = model.infill(f"def f({MARKS[2]}", "return x")
        assert segments is not None
        ids = model.encode(segments)
        spelled = b"".join(model.token_bytes(ids)).decode()
        assert spelled.endswith(f"{MARKS[0]}def f({MARKS[2]}{MARKS[1]}return x{MARKS[2]}")
        marks = [model.tokenize(mark, add_special=False, parse_special=True) for mark in MARKS]
        assert [ids.count(mark) for (mark,) in marks] == [1, 1, 1]
    finally:
        await model.close()


def test_a_vocabulary_without_these_tokens_cannot_fill_in() -> None:
    weights = LlamaModel.load(CHAT_MODEL, weights=False)
    assert weights.infill is None
    weights.close()
