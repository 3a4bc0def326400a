"""Nothing that the wrapper of llama.cpp is asked for kills the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inference.attention import ALL
from tests.inference.modes import COVERING
from tests.inference.traps import TRAPS
from tests.serving import ROOT

TIMEOUT_S = 100


@pytest.fixture(scope="module", params=COVERING)
def outcomes(request: pytest.FixtureRequest) -> dict[str, str]:
    """How each trap ended; the one that killed the process has no outcome, and those behind it were not tried."""
    command = [sys.executable, "-m", "tests.inference.traps", str(ALL.index(request.param))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S)
    return dict(line.split("\t") for line in done.stdout.splitlines() if "\t" in line)


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_refused_and_kills_nobody(trap: str, outcomes: dict[str, str]) -> None:
    assert outcomes.get(trap) == "refused"
