"""A home whose server has run before: what is tested after a first start begins with a copy of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from migrations.embedded import EmbeddedPostgres
from migrations.embedded.placement import Placement, placement_of


@pytest.fixture(scope="package")
def made(make_home: Callable[[], Path]) -> Path:
    """A home whose server was started and stopped."""
    home = make_home()
    with EmbeddedPostgres(home):
        pass
    return home


def copied(made: Path, home: Path) -> Placement:
    subprocess.run(["cp", "-a", f"{made}/.", home], check=True)
    return placement_of(home)


@pytest.fixture
def used_home(made: Path, home: Path) -> Path:
    """Copying it takes a tenth of the time of a first start."""
    copied(made, home)
    return home
