"""Measures during an idle period which attention is fastest here, for the next start. The first start uses a rule
instead, so that it can serve immediately.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from subprocess import DEVNULL, PIPE

from inference.attention import ALL
from inference.config import EngineConfig, default_threads
from inference.errors import InferenceError
from inference.provisioning.calibration import Calibrations, affordable
from inference.provisioning.speed import Pace
from inference.provisioning.speed import isolated_attention_paces as measure
from worker.lifecycle.supervisor import Healthy, Supervised, Supervisor

PAUSE_S = 60.0  # without a token: the worker is idle
LOOK_S = 0.05  # longest time for which a returning user shares the CPU with the measurement

log = logging.getLogger("firsttoken.calibrator")


class Calibrator:
    """`steps` counts the engine's steps. As soon as the engine is busy, the measurement is postponed to another idle
    period: beside it, the first step of who comes back would take several times as long."""

    def __init__(
        self,
        config: EngineConfig,
        calibrations: Calibrations,
        steps: Callable[[], int],
        is_busy: Callable[[], bool],
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._config, self._calibrations, self._pause_s = config, calibrations, pause_s
        self._steps, self._is_busy = steps, is_busy
        self._task: Supervised | None = None

    def start(self, supervisor: Supervisor) -> None:
        if not self._config.is_calibrated:
            self._task = supervisor.start("calibrator", self._run, ends=True)

    async def close(self) -> None:
        if self._task is not None:
            await self._task.stop()

    async def _run(self, _healthy: Healthy) -> None:
        paces = None
        try:
            while paces is None:
                await self._pause()
                if await asyncio.to_thread(affordable, self._config):
                    paces = await self._measured()
            attention = await asyncio.to_thread(self._calibrations.put, self._config, paces)
        except (ValueError, OSError, InferenceError):  # the process died, or its file is gone: keep the rule
            log.warning("the fastest attention mode could not be measured; `firsttoken doctor` says why")
        else:
            log.info("the next start uses %s (%s)", attention, attention.flags)

    async def _pause(self) -> None:
        while True:
            before = self._steps()
            await asyncio.sleep(self._pause_s)
            if self._steps() == before:
                return

    async def _measured(self) -> list[Pace] | None:
        """The result of the measurement; None if requests arrived meanwhile."""
        config, before = self._config, self._steps()
        threads = config.threads or default_threads()
        command, given = measure.command(config.model_path, ALL, threads=threads, gpu_layers=config.gpu_layers)
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        reading = asyncio.create_task(process.communicate(given))
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=LOOK_S)
                if self._is_busy() or self._steps() != before:
                    return None
            return measure.result_in(reading.result()[0])
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            reading.cancel()
