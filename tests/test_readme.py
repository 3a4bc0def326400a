"""The README keeps what it promises."""

from __future__ import annotations

from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_first_lines_are_the_two_commands() -> None:
    commands = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    make")]
    assert commands[:2] == ["make run", "make test"]
