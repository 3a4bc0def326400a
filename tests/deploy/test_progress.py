"""The progress of a compilation, as people see it."""

from __future__ import annotations

import io

import pytest

from deploy.wheel import Progress, steps_in, time_left


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("  [57/140] /usr/bin/g++ -DGGML_BUILD -c ggml.cpp\n", (57, 140)),
        ("[140/140] Linking CXX shared library libllama.so\n", (140, 140)),
        ("  [ 40%] Building CXX object ggml.cpp.o\n", (40, 100)),
        ("[100%] Built target llama\n", (100, 100)),
        ("  -- Found OpenMP: TRUE\n", None),
        ("warning: x[1/2] is odd\n", None),
        ("", None),
    ],
)
def test_steps_are_read_from_ninja_and_from_make(line: str, steps: tuple[int, int] | None) -> None:
    assert steps_in(line) == steps


@pytest.mark.parametrize(
    ("done", "elapsed_s", "words"),
    [
        (0, 60.0, ""),
        (1, 1.0, ""),  # too early to tell
        (70, 120.0, "about 2 min left"),
        (139, 240.0, "less than a minute left"),
    ],
)
def test_the_time_left_is_guessed_from_the_pace_so_far(done: int, elapsed_s: float, words: str) -> None:
    assert time_left(done, 140, elapsed_s) == words


def test_a_terminal_sees_one_line_rewritten() -> None:
    terminal = Terminal()
    progress = Progress("compiling", terminal)
    progress.step(1, 2)
    progress.step(2, 2)
    progress.close()
    assert terminal.getvalue().replace(" ", "") == "\rcompiling\rcompiling:1/2\rcompiling:2/2\rcompiling:0s\n"


def test_a_log_gets_few_lines_but_always_the_first_and_the_last() -> None:
    log = io.StringIO()
    progress = Progress("compiling", log)
    for done in range(1, 141):
        progress.step(done, 140)
    progress.close()
    assert log.getvalue().splitlines() == ["compiling", "compiling: 140/140", "compiling: 0 s"]
