from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from inference.bundled import DRAFT_MODEL
from training.bundle import bundled_vocabulary
from training.checkpoint import Checkpoint
from training.model import fresh
from training.shape import DRAFT

TINY = replace(DRAFT, n_layer=2, ctx=64)


@pytest.fixture
def checkpoint() -> Checkpoint:
    weights = {name: weight.detach() for name, weight in fresh(TINY, seed=1).state_dict().items()}
    momenta: dict[tuple[int, ...], torch.Tensor] = {(64, 128): torch.ones(1, 64, 128)}
    return Checkpoint(TINY, weights, bundled_vocabulary(), {"state": {}}, momenta, step=7, seen=8192, spent_s=2.5)


def test_a_checkpoint_comes_back_as_it_was_saved(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "it.pt"
    checkpoint.save(path)
    again = Checkpoint.load(path)
    assert replace(again, weights={}, momenta={}) == replace(checkpoint, weights={}, momenta={})
    assert again.weights.keys() == checkpoint.weights.keys()
    assert all(torch.equal(again.weights[name], weight) for name, weight in checkpoint.weights.items())
    assert again.momenta is not None and torch.equal(again.momenta[64, 128], torch.ones(1, 64, 128))
    assert list(tmp_path.iterdir()) == [path]


def test_weights_alone_are_enough_to_start(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    halves = {name: weight.half() for name, weight in checkpoint.weights.items()}
    torch.save({"config": asdict(TINY), "model": halves, "step": 7}, path)
    start = Checkpoint.load(path)
    assert (start.step, start.adam, start.vocabulary) == (7, None, bundled_vocabulary())
    assert {weight.dtype for weight in start.model().state_dict().values()} == {torch.float32}


def test_the_bundled_file_is_enough_to_start() -> None:
    start = Checkpoint.load(DRAFT_MODEL)
    assert (start.shape, start.step, start.parameters) == (DRAFT, 0, sum(w.numel() for w in start.weights.values()))
    start.model()


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save({"some": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="no checkpoint"):
        Checkpoint.load(path)
