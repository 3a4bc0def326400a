"""Which builds of llama.cpp the tests run on, and how their results are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.builds import AVX512, Result, builds, table
from deploy.toolchain import Cpu

ROOT = Path(__file__).resolve().parents[2]
AVX2 = frozenset({"avx2"})


@pytest.mark.parametrize(
    ("features", "names"),
    [
        (AVX2, ["AVX", "portable", "native"]),
        (AVX2 | {"avx512f"}, ["AVX", "portable", "native"]),  # the first of these CPUs had less than llama.cpp needs
        (AVX2 | AVX512, ["AVX", "portable", "AVX-512", "native"]),
        (AVX2 | AVX512 | {"amx_tile"}, ["AVX", "portable", "AVX-512", "native without AMX", "native with AMX"]),
    ],
)
def test_a_cpu_is_tested_with_every_set_of_instructions_that_it_has(features: frozenset[str], names: list[str]) -> None:
    assert [build.name for build in builds(Cpu("x86_64", features))] == names


def test_a_cpu_that_is_not_x86_has_no_older_sets_of_instructions() -> None:
    assert [build.name for build in builds(Cpu("aarch64", frozenset({"asimd"})))] == ["portable", "native"]


def test_every_build_is_another() -> None:
    found = builds(Cpu("x86_64", AVX2 | AVX512 | {"amx_tile"}))
    assert len({build.cmake_args for build in found}) == len(found)


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        ("....\n3142 passed in 512.30s (0:08:32)\n", 0, "3142 passed"),
        ("FAILED x.py::test\n1 failed, 3141 passed, 2 errors in 9.1s\n", 1, "1 failed, 3141 passed, 2 errors"),
        ("24 passed in 2.85s\nException ignored in: <_io.FileIO>\nResourceWarning: unclosed file\n", 0, "24 passed"),
        ("ERROR: file or directory not found: x\n", 4, "no result, exit status 4"),
        ("", -4, "killed by SIGILL"),
        ("3 passed in 1s\n", -11, "killed by SIGSEGV"),
    ],
)
def test_a_run_is_told_by_its_summary_or_by_what_ended_it(output: str, status: int, said: str) -> None:
    assert Result.of(output, status) == Result(said, status)


def test_the_table_has_a_build_a_line_and_a_column_for_each_number_of_threads() -> None:
    good, bad = Result("12 passed", 0), Result("1 failed, 11 passed", 1)
    assert list(table({"portable": {1: good, 2: bad}, "AVX-512": {1: good}})) == [
        "build     1 thread   2 threads",
        "portable  12 passed  1 failed, 11 passed",
        "AVX-512   12 passed",
    ]


def test_help_needs_nothing_but_the_standard_library() -> None:
    command = [sys.executable, "-S", "-E", "-m", "deploy.builds", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "--threads" in done.stdout
