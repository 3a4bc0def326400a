"""Nothing that the wrapper of llama.cpp is asked for kills the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inference.attention import ALL, Attention
from tests.inference.modes import COVERING
from tests.inference.traps import TRAPS
from tests.serving import ROOT

TIMEOUT_S = 100


@pytest.mark.parametrize("mode", COVERING)
def test_every_trap_is_refused_and_kills_nobody(mode: Attention) -> None:
    """The one that killed the process has no outcome, and those behind it were not tried."""
    command = [sys.executable, "-m", "tests.inference.traps", str(ALL.index(mode))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S)
    outcomes = dict(line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
    assert outcomes == dict.fromkeys(TRAPS, "refused")
