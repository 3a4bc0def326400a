"""`firsttoken models` as people and programs run it, against a hub of our own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from inference.bundled import CHAT_MODEL
from inference.provisioning.catalogue import PRESETS, SMOL_CHAT
from tests.worker.cli.test_main import complaint, firsttoken
from tests.worker.hub import CONTENT, PATH, SHA256, running_hub

NAME = PATH[1:].replace("/resolve/main", "")


def test_the_list_has_bundled_pulled_and_own_models(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.gguf").write_bytes(CONTENT)
    (tmp_path / "models" / PRESETS[0].file_name).write_bytes(CONTENT)
    lines = firsttoken("models", "list", "--home", str(tmp_path)).stdout.splitlines()
    states = {line.split()[0]: line for line in lines if line}
    assert "bundled" in states["demo-chat"]
    assert " here " in states[PRESETS[0].name] and " - " in states[PRESETS[1].name]
    assert "mine.gguf" in states["mine"]
    report = json.loads(firsttoken("models", "list", "--json", "--home", str(tmp_path)).stdout)
    assert [model["here"] for model in report["presets"][:2]] == [True, False]
    assert report["files"] == [str(tmp_path / "models" / "mine.gguf")]


def test_info_tells_what_a_bundled_model_is(tmp_path: Path) -> None:
    text = firsttoken("models", "info", "demo-chat", "--home", str(tmp_path)).stdout
    for part in ("11.4 million, Q8_0", "2048 tokens", "ChatML", "KV cache", "demonstration models"):
        assert part in text


def test_info_has_the_card_of_a_model_with_a_bundled_adapter(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / SMOL_CHAT.file_name).symlink_to(CHAT_MODEL)
    assert SMOL_CHAT.card.read_text() in firsttoken("models", "info", SMOL_CHAT.name, "--home", str(tmp_path)).stdout


def test_info_counts_memory_with_the_settings_given(tmp_path: Path) -> None:
    def kv_bytes(*settings: str) -> int:
        arguments = ("models", "info", str(CHAT_MODEL), "--json", "--home", str(tmp_path), *settings)
        return int(json.loads(firsttoken(*arguments).stdout)["memory"]["kv_cache"])

    assert kv_bytes("--context", "2000") == 2 * kv_bytes("--context", "1000")


def test_info_of_a_preset_that_is_not_here_is_what_the_catalogue_knows(tmp_path: Path) -> None:
    text = firsttoken("models", "info", "qwen3-8b", "--home", str(tmp_path)).stdout
    assert "Qwen/Qwen3-8B-GGUF" in text and "firsttoken models pull qwen3-8b" in text


def test_info_of_a_file_that_is_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    assert "not a GGUF file" in complaint("models", "info", str(tmp_path / "text.gguf"), "--home", str(tmp_path))


async def test_a_model_of_the_hub_is_pulled_once(tmp_path: Path) -> None:
    async with running_hub() as hub:
        arguments = ("models", "pull", NAME, "--hub", hub.url, "--home", str(tmp_path))
        done = await asyncio.to_thread(firsttoken, *arguments)
        assert done.returncode == 0, done.stderr
        assert SHA256 in done.stdout and "verified" in done.stdout
        assert (tmp_path / "models" / "model.gguf").read_bytes() == CONTENT
        assert "already exists" in await asyncio.to_thread(complaint, *arguments)
        assert len(hub.ranges) == 1


async def test_a_checksum_given_by_hand_counts(tmp_path: Path) -> None:
    async with running_hub() as hub:
        arguments = ("models", "pull", NAME, "--hub", hub.url, "--home", str(tmp_path), "--sha256", "0" * 64)
        assert SHA256 in await asyncio.to_thread(complaint, *arguments)
        assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("nothing", (), "choose one of smollm2-135m"),
        ("demo-chat", (), "ships with"),
        (NAME, ("--sha256", "12"), "64 hexadecimal digits"),
        (NAME, ("--hub", "ftp://hub.test"), "--hub must be an http(s) URL"),
    ],
)
def test_what_cannot_be_pulled_is_refused_at_once(
    tmp_path: Path, name: str, options: tuple[str, ...], what: str
) -> None:
    assert what in complaint("models", "pull", name, "--home", str(tmp_path), *options)
