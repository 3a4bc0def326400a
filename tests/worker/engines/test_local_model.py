"""A model that nobody waits for any more is not loaded to its end."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from inference.bundled import CHAT_MODEL
from inference.errors import ModelNotLoaded
from inference.llama import load_weights
from inference.model import ChatModel
from worker.config import Config
from worker.engines.local_model import open_model
from worker.lifecycle.supervisor import Supervisor

WAIT_S = 60.0


async def test_a_load_ends_when_its_task_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Path(shutil.copy(CHAT_MODEL, tmp_path))  # whose weights no other test has loaded
    begun, ends, over = Event(), Event(), Event()
    load = ChatModel.load
    shares: list[float] = []

    def tell(share: float) -> None:
        shares.append(share)
        begun.set()
        assert ends.wait(WAIT_S)

    def loading(*arguments: Any, **options: Any) -> ChatModel:
        try:
            return load(*arguments, **options)
        finally:
            over.set()

    monkeypatch.setattr(ChatModel, "load", loading)

    async def opened() -> None:
        async with open_model(Config(home=tmp_path, model=model), Supervisor(), tell):
            pass

    opening = asyncio.create_task(opened())
    assert await asyncio.to_thread(begun.wait, WAIT_S)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    ends.set()
    assert await asyncio.to_thread(over.wait, WAIT_S)
    assert shares[-1] < 1


def test_weights_that_are_not_wanted_any_more_are_no_damaged_file(tmp_path: Path) -> None:
    model = Path(shutil.copy(CHAT_MODEL, tmp_path))
    with pytest.raises(ModelNotLoaded, match="was given up"):
        load_weights(model, progress=lambda share: False)
    load_weights(model).close()
