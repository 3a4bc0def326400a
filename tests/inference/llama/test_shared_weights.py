"""Models on the same file share its weights; a file that takes long to load keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event

import pytest

from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.errors import ModelNotLoaded
from inference.llama import are_loaded, load_weights

WAIT_S = 30.0


async def test_who_needs_the_same_weights_waits_for_them_and_nobody_else_does() -> None:
    begun, ends = Event(), Event()

    def told(share: float) -> None:
        begun.set()
        assert ends.wait(WAIT_S)

    slow = asyncio.create_task(asyncio.to_thread(load_weights, CHAT_MODEL, progress=told))
    assert await asyncio.to_thread(begun.wait, WAIT_S)
    same = asyncio.create_task(asyncio.to_thread(load_weights, CHAT_MODEL))
    other = await asyncio.to_thread(load_weights, DRAFT_MODEL)
    assert are_loaded(DRAFT_MODEL) and not are_loaded(CHAT_MODEL)
    ends.set()
    first, second = await slow, await same
    assert first.handle == second.handle != other.handle
    for model in (first, other):
        model.close()
    assert are_loaded(CHAT_MODEL) and not are_loaded(DRAFT_MODEL)
    second.close()
    assert not are_loaded(CHAT_MODEL)


def test_a_file_that_could_not_be_loaded_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    for _ in range(2):
        with pytest.raises(ModelNotLoaded):
            load_weights(path)
        assert not are_loaded(path)
