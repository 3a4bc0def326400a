"""The npm packages of the tests: exactly those of the lock file, or a line that says what is missing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy import clients
from deploy.commands import Log, SetupFailed

FOLDERS = [clients.FOLDER, clients.PROGRAMS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What pins the packages, elsewhere."""
    folder = tmp_path / "node"
    folder.mkdir()
    for name in clients.PINS:
        shutil.copy(clients.FOLDER / name, folder)
    return folder


@pytest.mark.parametrize("pinned", FOLDERS, ids=lambda folder: folder.name)
def test_every_package_has_an_integrity_and_names_no_registry(pinned: Path) -> None:
    _, *packages = json.loads((pinned / "package-lock.json").read_text())["packages"].items()
    assert packages
    for name, package in packages:
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name


@pytest.mark.parametrize("pinned", FOLDERS, ids=lambda folder: folder.name)
def test_versions_are_exact(pinned: Path) -> None:
    wanted = json.loads((pinned / "package.json").read_text())["dependencies"]
    assert [version for version in wanted.values() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []


def test_what_is_in_the_cache_is_not_fetched_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def download(_: Log, command: Sequence[str], failure: str) -> None:
        prefix = next(part for part in command if part.startswith("--prefix="))
        made.append(Path(prefix.removeprefix("--prefix=")))
        (made[-1] / "node_modules").mkdir()

    monkeypatch.setattr(Log, "run", download)
    for _ in range(2):
        clients.install(folder, tmp_path / "cache")
    assert len(made) == 1
    kept = (folder / "node_modules").resolve()
    assert kept.is_dir() and kept.is_relative_to(tmp_path / "cache")


def test_a_registry_that_cannot_be_reached_is_one_clear_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(SetupFailed, match="is the npm registry reachable"):
        clients.install(folder, tmp_path / "cache")
    assert not (folder / "node_modules").exists()


def test_node_is_new_enough_for_the_packages() -> None:
    told = subprocess.run([clients.NODE, "--version"], capture_output=True, text=True, check=True).stdout
    assert int(told.removeprefix("v").split(".")[0]) >= 22
