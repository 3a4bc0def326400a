"""A model in this process, as the settings have it: from its file to its first step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from threading import Event
from typing import TypeAlias

from inference.llama import Progress
from inference.model import ChatModel
from inference.provisioning.calibration import Calibrations
from inference.provisioning.fit import here
from inference.trace import Trace
from worker.config import Config
from worker.engines.engine_config import engine_config, load_for
from worker.home import Home
from worker.lifecycle.calibrator import Calibrator
from worker.lifecycle.process import say
from worker.lifecycle.supervisor import Supervisor

LoadedShare: TypeAlias = Callable[[float], None]  # the loaded share of the models, from 0 to 1

log = logging.getLogger("firsttoken.models")


@asynccontextmanager
async def open_model(
    config: Config,
    supervisor: Supervisor,
    progress: LoadedShare | None = None,
    trace: Trace | None = None,
    of: str | None = None,
) -> AsyncIterator[ChatModel]:
    """The phases of the start become spans of the trace. `of` is the model's name if there are several."""
    wanted = await asyncio.to_thread(load_for, "--model", engine_config, config)
    if of is not None:
        wanted = replace(wanted, disk_folder=Home(config.home).kv_of(of))
    allowance = await asyncio.to_thread(load_for, "--model", here, wanted)
    if allowance.is_less:
        say(f"There is memory for {allowance}: {allowance.reason}")
    engine = allowance.config
    trace = trace or Trace()
    with trace.span("weights"), while_wanted(progress) as reports:
        model = await asyncio.to_thread(load_for, "--model", ChatModel.load, engine, reports)
    calibrations = Calibrations(Home(config.home).calibrations)
    calibrator = Calibrator(engine, calibrations, lambda: model.steps, lambda: model.is_busy)
    try:
        with trace.span("first_step"):
            await model.start()
        trace.finish()
        log.info("the model is loaded: %s", phases(trace))
        calibrator.start(supervisor)
        yield model
    finally:
        await calibrator.close()
        await model.close()


@contextmanager
def while_wanted(report: LoadedShare | None) -> Iterator[Progress]:
    """The progress for a load in a thread: the load ends early when the task that waits for it is cancelled, since a
    process that is to end waits for its threads."""
    cancelled = Event()

    def progress(share: float) -> bool:
        if report is not None:
            report(share)
        return not cancelled.is_set()

    try:
        yield progress
    except asyncio.CancelledError:
        cancelled.set()
        raise


def phases(trace: Trace) -> str:
    """For people: how long the phases of a start took."""
    return ", ".join(f"{span.name} {span.duration_ms / 1e3:.2f} s" for span in trace.spans)
