"""The unit for systemd, as systemd reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.serving import ROOT
from worker.config import Config
from worker.lifecycle.crew.crew import LEAVE_S

UNIT = ROOT / "deploy/systemd/firsttoken.service"


def settings() -> dict[str, str]:
    lines = (line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


def test_a_stop_reaches_the_first_process_alone_and_has_the_time_that_it_takes() -> None:
    told = settings()
    assert (told["KillMode"], told["KillSignal"]) == ("mixed", "SIGTERM")
    assert float(told["TimeoutStopSec"]) > Config().drain_s + 2 * LEAVE_S  # workers, then the engine
    assert told["ExecStart"].split()[1:] == ["serve", "--home", "%S/firsttoken"]
    assert "-USR1 $MAINPID" in told["ExecReload"]


@pytest.mark.parametrize("fault", ["", "KillMode=mixed"])
def test_systemd_understands_all_of_it(fault: str, tmp_path: Path) -> None:
    """It tells of what it does not know, and succeeds all the same. Without systemd, nobody uses it either."""
    text = UNIT.read_text().replace("/opt/firsttoken/.venv/bin/firsttoken", "/bin/true")
    unit = tmp_path / "firsttoken.service"
    unit.write_text(text.replace(fault, "KillMode=all-of-them") if fault else text)
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        assert UNIT.exists()
        return
    assert done.returncode == 0
    assert bool(done.stderr.strip()) == bool(fault)
