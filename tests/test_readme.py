"""The README and the other pages keep what they promise."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")  # relative ones


def test_the_first_lines_are_the_two_commands() -> None:
    commands = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    make")]
    assert commands[:2] == ["make run", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    targets = [target.split("#")[0] for target in LINK.findall(page.read_text("utf-8"))]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


def test_the_installed_command_is_a_function() -> None:
    """What `make run` starts; the tests themselves start the worker as a module."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert [name for name, target in scripts.items() if not callable(EntryPoint(name, target, "").load())] == []
