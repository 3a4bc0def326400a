"""The benchmark of a GPU says what is missing, and a part that dies costs no other."""

from __future__ import annotations

import sys

import pytest

from benchmarks import gpu
from benchmarks.gpu import Row, rows_of, table
from inference.llama import has_gpu

SAYS_ONE = "import json; print(json.dumps(['1 streams', 'fast']), flush=True); "


def part(code: str, limit_s: float = 60) -> list[Row]:
    return list(rows_of("curve", [sys.executable, "-c", SAYS_ONE + code], limit_s))


@pytest.mark.cpu
def test_without_a_device_a_line_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert not has_gpu()
    assert gpu.main() == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "FIRSTTOKEN_BACKEND" in err


def test_a_part_that_ends_has_its_rows_alone() -> None:
    assert part("") == [Row("curve", "1 streams", "fast")]


@pytest.mark.parametrize(
    ("code", "limit_s", "why"),
    [
        ("import os; os.kill(os.getpid(), 11)", 60, "ended by SIGSEGV"),
        ("raise SystemExit(3)", 60, "failed"),
        ("import time; time.sleep(600)", 2, "stopped after 2 s"),
    ],
    ids=["crash", "failure", "too slow"],
)
def test_a_part_that_dies_keeps_what_it_measured(code: str, limit_s: float, why: str) -> None:
    assert part(code, limit_s) == [Row("curve", "1 streams", "fast"), Row("curve", "the rest", why)]


def test_rows_are_a_table() -> None:
    assert table([Row("TTFT", "prompt of 64 tokens", "3.0 ms")]).splitlines() == [
        "| part | case | result |",
        "|---|---|---|",
        "| TTFT | prompt of 64 tokens | 3.0 ms |",
    ]
