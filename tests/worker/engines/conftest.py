"""One engine in a process of its own, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines import EngineProcess

STREAMS, QUEUE = 2, 1
TOKEN = "the-token-of-the-tests"


@pytest.fixture(scope="package")
def engine(make_home: Callable[[], Path]) -> Iterator[EngineProcess]:
    options = ("--streams", str(STREAMS), "--resident", "4", "--queue", str(QUEUE))
    process = EngineProcess(make_home(), *options, FIRSTTOKEN_ENGINE_TOKEN=TOKEN)
    process.wait_until_ready()
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="package")
def address(engine: EngineProcess) -> str:
    return engine.wait_until_ready()
