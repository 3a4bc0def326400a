"""A device that is lost ends what it computes, and not the process; and that one ends without a word."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ALONE = "from inference.llama.library import lib; from inference.llama import abort_handler as w; w._install(); "


@pytest.mark.parametrize(
    ("how", "reason"), [("abort", "ggml.cu:7: the GPU fell off the bus"), ("terminate", ""), ("late", "")]
)
def test_an_answer_fails_with_the_reason_and_the_process_ends_in_order(how: str, reason: str) -> None:
    command = [sys.executable, "-m", "tests.inference.lost_device", how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    failed, refused, lost = done.stdout.splitlines()
    assert failed.startswith("the device failed: ") and reason in failed and "/home" not in failed
    assert refused == f"refused: {failed}" and lost == "lost: True"


def test_a_thread_that_nobody_listens_to_dies_with_its_process() -> None:
    script = f"{ALONE}lib._lib.ggml_abort(b'/x/y.c', 3, b'nobody is told')"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == -signal.SIGABRT and "y.c:3: nobody is told" in done.stderr


def test_the_bindings_leave_no_file_open_that_the_end_of_a_process_would_complain_about() -> None:
    command = [sys.executable, "-W", "error", "-c", "import inference.llama.library"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
