"""A worker at rest measures which attention is fastest, and lets go of it when somebody comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.provisioning.calibration import Calibrations
from worker.config import load
from worker.engines.engine_config import engine_config
from worker.home import Home
from worker.lifecycle.calibrator import Calibrator
from worker.lifecycle.supervisor import Supervisor

DONE_S = 120.0


def at_rest() -> bool:
    return False


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(DONE_S):
        while True:
            if fact():
                return
            await asyncio.sleep(0.02)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """The processes that are started."""
    processes: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def noted(*arguments: str, **options: int) -> asyncio.subprocess.Process:
        processes.append(await start(*arguments, **options))  # type: ignore[arg-type]
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    return processes


async def test_what_a_worker_measures_in_a_pause_is_there_at_its_next_start(tmp_path: Path) -> None:
    config = load({"home": str(tmp_path)})
    calibrations = Calibrations(Home(tmp_path).calibrations)
    engine = engine_config(config)
    assert not engine.is_calibrated
    calibrator = Calibrator(engine, calibrations, lambda: 7, at_rest, pause_s=0.01)
    calibrator.start(Supervisor())
    await until(lambda: calibrations.get(engine) is not None)
    await calibrator.close()
    assert engine_config(config).is_calibrated


@pytest.mark.parametrize("still", ["waits", "was answered"])
async def test_who_comes_back_ends_the_measurement_which_begins_again_in_the_next_pause(
    tmp_path: Path, started: list[asyncio.subprocess.Process], still: str
) -> None:
    def steps() -> int:
        return len(started[:1]) if still == "was answered" else 7

    def is_busy() -> bool:
        return still == "waits" and len(started) == 1

    calibrations = Calibrations(tmp_path / "calibrations.json")
    calibrator = Calibrator(EngineConfig(), calibrations, steps, is_busy, pause_s=0.01)
    calibrator.start(Supervisor())
    await until(lambda: len(started) > 1)
    assert started[0].returncode is not None and started[0].returncode < 0
    await calibrator.close()


async def test_a_worker_that_stops_takes_the_measurement_with_it(
    tmp_path: Path, started: list[asyncio.subprocess.Process]
) -> None:
    calibrator = Calibrator(
        EngineConfig(), Calibrations(tmp_path / "calibrations.json"), lambda: 7, at_rest, pause_s=0.01
    )
    calibrator.start(Supervisor())
    await until(lambda: bool(started))
    await calibrator.close()
    assert started[0].returncode is not None and started[0].returncode < 0


async def test_nothing_is_measured_where_somebody_chose(
    tmp_path: Path, started: list[asyncio.subprocess.Process]
) -> None:
    config = EngineConfig(flash_attention="off")
    calibrator = Calibrator(config, Calibrations(tmp_path / "calibrations.json"), lambda: 7, at_rest, pause_s=0.0)
    calibrator.start(Supervisor())
    await asyncio.sleep(0)
    await calibrator.close()
    assert not started


async def test_a_model_that_vanished_leaves_the_rule_and_a_word_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(model_path=tmp_path / "gone.gguf")
    calibrator = Calibrator(config, Calibrations(tmp_path / "calibrations.json"), lambda: 7, at_rest, pause_s=0.0)
    calibrator.start(Supervisor())
    await until(lambda: "could not be measured" in caplog.text)
    await calibrator.close()
