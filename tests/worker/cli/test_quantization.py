"""`firsttoken models quantize` as people and programs run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.bundled import DRAFT_MODEL
from tests.worker.cli.test_main import complaint, firsttoken


def quantize(home: Path, *arguments: str) -> tuple[str, ...]:
    return ("models", "quantize", *arguments, "--home", str(home))


def test_a_smaller_model_is_written_with_a_report(tmp_path: Path) -> None:
    target = tmp_path / "small.gguf"
    done = firsttoken(*quantize(tmp_path, "demo-draft", str(target), "--type", "q4_0"))
    assert done.returncode == 0, done.stderr
    assert target.stat().st_size < DRAFT_MODEL.stat().st_size
    for part in ("size", "perplexity", "decode tokens/s", "stayed the same", "nats"):
        assert part in done.stdout
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_the_report_is_there_for_programs_and_on_any_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Green tea is steeped for three minutes, black tea for five. " * 30)
    options = ("--type", "Q8_0", "--text", str(tmp_path / "text.txt"), "--json")
    done = firsttoken(*quantize(tmp_path, "demo-draft", str(tmp_path / "same.gguf"), *options))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["comparison"]["agreement"] > 0.99  # it was of this kind before
    assert report["speeds"][1]["decode"] > 0 and report["bytes"][0] == DRAFT_MODEL.stat().st_size


def test_a_broken_model_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(DRAFT_MODEL.read_bytes()[:100_000])
    line = complaint(*quantize(tmp_path, str(tmp_path / "cut.gguf"), str(tmp_path / "out.gguf"), "--type", "q4_0"))
    assert "could not quantise" in line
    assert {path.name for path in tmp_path.glob("*.gguf*")} == {"cut.gguf"}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("demo-draft", "out.gguf", "--type", "q9"), "--type must be one of"),
        (("demo-draft", "nowhere/out.gguf", "--type", "q8_0"), "create it"),
        (("nothing", "out.gguf", "--type", "q8_0"), "no model nothing"),
        (("demo-draft", "README.md", "--type", "q8_0"), "already exists"),
        (("demo-draft", "out.gguf", "--type", "q8_0", "--text", "nowhere.txt"), "--text"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(tmp_path: Path, arguments: tuple[str, ...], what: str) -> None:
    assert what in complaint(*quantize(tmp_path, *arguments))
