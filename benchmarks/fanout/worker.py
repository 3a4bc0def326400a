"""The worker under test: `firsttoken serve`, with a paced model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.fanout.paced import PacedModel
from worker.config import Config
from worker.engines import active_engines
from worker.serve import serve

BUNDLED = Path("demo-chat")
PLENTY = 4000  # concurrent turns: nothing should be refused here


def run(home: Path, ready: Path, rate: float, **settings: Any) -> None:
    """Serve until a signal arrives. `rate` 0: with the bundled model. `settings`: additional settings."""
    if rate:

        @asynccontextmanager
        async def open_model(*_: object) -> AsyncIterator[Any]:
            model = PacedModel(rate)
            model.start()
            yield model

        active_engines.open_model = open_model  # type: ignore[assignment]
    else:
        settings = {"model": BUNDLED, **settings}
    config = Config(
        home=home,
        port=0,
        ready_file=ready,
        turns=2 * PLENTY,  # of which a tenant may have half
        queue=PLENTY,
        docs=None,
        log_level="error",
        **settings,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, began=time.monotonic()))
