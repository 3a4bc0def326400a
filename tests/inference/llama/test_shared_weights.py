"""Models on the same file share its weights; a file that takes long to load keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.errors import ModelNotLoaded
from inference.llama import are_loaded, load_weights
from inference.llama import weights as module

WAIT_S = 60.0


async def test_who_needs_the_same_weights_waits_for_them_and_nobody_else_does(tmp_path: Path) -> None:
    large, small = (Path(shutil.copy(path, tmp_path)) for path in (CHAT_MODEL, DRAFT_MODEL))  # which nobody else uses
    begun, ends = Event(), Event()

    def told(share: float) -> None:
        begun.set()
        assert ends.wait(WAIT_S)

    slow = asyncio.create_task(asyncio.to_thread(load_weights, large, progress=told))
    assert await asyncio.to_thread(begun.wait, WAIT_S)
    same = asyncio.create_task(asyncio.to_thread(load_weights, large))
    other = await asyncio.to_thread(load_weights, small)
    assert are_loaded(small) and not are_loaded(large)
    ends.set()
    first, second = await slow, await same
    assert first.handle == second.handle != other.handle
    for model in (first, other):
        model.close()
    assert are_loaded(large) and not are_loaded(small)
    second.close()
    assert not are_loaded(large)


def test_a_file_that_could_not_be_loaded_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    for _ in range(2):
        with pytest.raises(ModelNotLoaded):
            load_weights(path)
        assert not are_loaded(path)


def test_special_tokens_are_listed_once_and_for_who_tokenizes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = []
    compiled = module._any_of

    def compiling(*arguments: str) -> object:
        patterns.append(compiled(*arguments))
        return patterns[-1]

    monkeypatch.setattr(module, "_any_of", compiling)
    with closing(load_weights(DRAFT_MODEL)) as first, closing(load_weights(DRAFT_MODEL)):
        assert not patterns
        for text in ("Hello", "<|im_end|>"):
            first.tokenize(text, parse_special=False)
        assert len(patterns) == 2  # of all, and of those that a text must not hold
