"""The README keeps what it promises."""

from __future__ import annotations

from pathlib import Path

from worker.config import settings

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_first_lines_are_the_two_commands() -> None:
    commands = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    make")]
    assert commands[:2] == ["make run", "make test"]


def test_every_setting_is_listed_as_the_help_text_has_it() -> None:
    for setting in settings():
        default = "" if setting.default is None else f" (default `{setting.default}`)"
        if isinstance(setting.default, Path) and setting.default.is_absolute():
            default = ""  # a path of this machine
        assert f"| `{setting.flag}` | `{setting.variable}` | {setting.about.help}{default} |" in README
