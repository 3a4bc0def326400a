"""A model whose device gives up in an answer: `python -m tests.inference.lost_device abort|terminate|late|lose`.

The calls are those that llama.cpp makes itself, on the engine's thread and in the middle of a step. Prints how the
answer ended; a process that dies instead prints nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference.config import EngineConfig
from inference.errors import EngineStopped
from inference.generation import Sampling
from inference.llama import LlamaContext, abort_handler
from inference.llama.library import lib
from inference.model import ChatModel
from inference.prompt import ChatMessage


def abort() -> None:
    lib._lib.ggml_abort(b"/home/builder/ggml.cu", 7, b"the GPU fell off the bus")


def terminate() -> None:
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()


def terminate_late() -> None:
    """The process is about to exit before the engine's thread is done with its report."""
    thread = threading.get_ident()
    tell = abort_handler._listeners[thread]

    def tell_late(reason: str) -> None:
        tell(reason)
        for _ in range(200):
            time.sleep(0.005)  # and asks for the GIL again

    abort_handler._listeners[thread] = tell_late
    terminate()


def lose() -> None:
    """What stands before the device breaks it: tests/gpu/faulty_device.c."""
    Path(os.environ["FAULTY_LOST"]).touch()


async def main(give_up: Callable[[], None]) -> None:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=2, resident=0, context=512, threads=1))
    await model.start()
    computed = LlamaContext.decode
    prompt = model.encode(model.render([ChatMessage("user", "Hello")]))

    def decode(self: LlamaContext, chunks: Any) -> Any:
        give_up()
        return computed(self, chunks)

    running = model.generate(prompt, Sampling(max_tokens=20))
    LlamaContext.decode = decode  # type: ignore[method-assign]
    try:
        async for _ in running:
            pass
    except EngineStopped as error:
        print(error)
    try:
        model.generate(prompt, Sampling(max_tokens=1))
    except EngineStopped as error:
        print("refused:", error)
    print("lost:", model.lost)
    await model.close()


if __name__ == "__main__":
    asyncio.run(main({"abort": abort, "terminate": terminate, "late": terminate_late, "lose": lose}[sys.argv[1]]))
