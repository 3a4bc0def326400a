"""Python packages of clients that the tests run: exactly those of the lock files, or a line that says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy import clients
from deploy.commands import Log, SetupFailed


@pytest.mark.parametrize("client", clients.PYTHON_CLIENTS)
def test_every_package_has_an_exact_version_and_hashes(client: str) -> None:
    lock = (clients.PYTHON_FOLDER / f"{client}.txt").read_text().replace("\\\n", " ")
    packages = [line for line in lock.splitlines() if line and not line.startswith("#")]
    assert packages
    assert [line for line in packages if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []
    wanted = (clients.PYTHON_FOLDER / f"{client}.in").read_text().splitlines()
    for line in wanted:
        assert line.startswith("#") or any(package.startswith(f"{line} ") for package in packages), line


def test_what_is_in_the_cache_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def download(_: Log, command: Sequence[str], failure: str) -> None:
        target = next(part for part in command if part.startswith("--target="))
        made.append(Path(target.removeprefix("--target=")))
        made[-1].mkdir()

    monkeypatch.setattr(Log, "run", download)
    (tmp_path / "a.txt").write_text("one")
    found = [clients.packages_of("a", tmp_path, tmp_path / "cache") for _ in range(2)]
    assert len(made) == 1 and found[0] == found[1]
    (tmp_path / "a.txt").write_text("another")
    assert clients.packages_of("a", tmp_path, tmp_path / "cache") != found[0]


def test_a_package_that_cannot_be_had_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "a.txt").write_text(f"absent==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(SetupFailed, match="The packages of a could not be installed"):
        clients.packages_of("a", tmp_path, tmp_path / "cache")
    assert not [*(tmp_path / "cache").glob("a-*")]
