"""The commands as a person gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from training.bundle import Bundle
from training.checkpoint import Checkpoint
from training.prose import Prose
from training.shape import DRAFT

WORDS = [first + second for first in ("amber", "brook", "candle", "dune", "elm") for second in ("gate", "path", "wood")]
EVERYTHING = ("prose", "tokenizer", "train", "distil", "average", "export", "evaluate")


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prose") / "prose.json"
    documents = [(word, [f"The {word} of this house is kept beside the {other}."]) for word in WORDS for other in WORDS]
    Prose(WORDS, documents).write(path)
    return path


def training(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """With one thread: tiny models take longer with more."""
    return subprocess.run(
        [sys.executable, "-m", "training", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_each_command_explains_itself() -> None:
    assert all(command in training("--help").stdout for command in EVERYTHING)


@pytest.mark.long
def test_a_draft_is_distilled_and_exported(prose: Path, tmp_path: Path) -> None:
    checkpoint, target = tmp_path / "folder" / "draft.pt", tmp_path / "draft.gguf"
    short = ("--minutes", "0.02", "--tokens", "2048", "--processes", "1", "--no-compile")
    distilled = training("distil", checkpoint, "--prose", prose, "--teacher", DRAFT_MODEL, "--fresh", *short)
    assert distilled.returncode == 0, distilled.stderr
    assert "held-out turns, exact: " in distilled.stdout
    exported = training("export", checkpoint, target, "--title", "Tiny Draft", "--check")
    assert exported.returncode == 0, exported.stderr
    assert "against llama.cpp: largest difference" in exported.stdout
    bundle = Bundle.read(target)
    assert (bundle.title, bundle.shape) == ("Tiny Draft", DRAFT)


def test_two_models_are_averaged(tmp_path: Path) -> None:
    read = Checkpoint.load(DRAFT_MODEL)
    doubled = replace(read, weights={name: 2 * weight for name, weight in read.weights.items()})
    doubled.save(tmp_path / "doubled.pt")
    averaged = training("average", tmp_path / "doubled.pt", DRAFT_MODEL, tmp_path / "between.pt", "--share", "0.25")
    assert averaged.returncode == 0, averaged.stderr
    between = Checkpoint.load(tmp_path / "between.pt")
    assert all(torch.allclose(between.weights[name], 1.25 * weight) for name, weight in read.weights.items())


@pytest.mark.parametrize(
    ("second", "share", "reason"), [(CHAT_MODEL, "0.5", "different shapes"), (DRAFT_MODEL, "1.5", "from 0 to 1")]
)
def test_what_has_no_average_is_said(tmp_path: Path, second: Path, share: str, reason: str) -> None:
    refused = training("average", DRAFT_MODEL, second, tmp_path / "between.pt", "--share", share)
    assert refused.returncode == 1
    assert reason in refused.stderr and not list(tmp_path.iterdir())


def test_a_cache_that_needs_flash_attention_is_not_evaluated_without(prose: Path) -> None:
    refused = training("evaluate", "--prose", prose, "--kv-type", "q4_0", "--flash-attention", "off")
    assert refused.returncode == 1
    assert refused.stderr == "training: a q4_0 KV cache needs flash attention\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--prose", "/nowhere.json"), "run `python -m training prose` first"),
        (("--tokens", "100"), "no room for a row"),
        (("--from", "/nowhere.gguf"), "No such file"),
    ],
)
def test_what_a_person_gets_wrong_ends_in_one_line(
    prose: Path, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    given = arguments if "--prose" in arguments else ("--prose", str(prose), *arguments)
    refused = training("train", tmp_path / "chat.pt", *given)
    assert refused.returncode == 1
    assert refused.stderr.startswith("training: ") and reason in refused.stderr and refused.stderr.count("\n") == 1
