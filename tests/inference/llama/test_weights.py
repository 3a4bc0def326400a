"""What a build for a GPU does where none of a model's layers go there, and where the KV cache is."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from inference.backend import Rows
from inference.bundled import DRAFT_MODEL
from inference.llama import LlamaContext, LlamaModel, weights
from tests.inference.variants import write_variant


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build says that it has a GPU; llama.cpp, which has none, computes on the CPU all the same."""
    monkeypatch.setattr(weights, "has_gpu", lambda: True)


@pytest.mark.usefixtures("gpu_build")
@pytest.mark.parametrize(("layers", "on_gpu"), [(0, False), (1, True), (-1, True)])
def test_a_model_without_layers_on_the_gpu_gets_the_attention_of_a_cpu(layers: int, on_gpu: bool) -> None:
    with (
        closing(LlamaModel.load(DRAFT_MODEL, gpu_layers=layers)) as model,
        closing(LlamaContext(model, slots=2, context=64, rows_max=32, threads=1)) as context,
    ):
        assert model.on_gpu is on_gpu
        assert (context.streams, context.exact) == (not on_gpu, not on_gpu)


def test_every_token_that_the_file_declares_as_an_end_is_one(tmp_path: Path) -> None:
    facts = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6}
    write_variant(DRAFT_MODEL, tmp_path / "ends.gguf", facts)
    with closing(LlamaModel.load(tmp_path / "ends.gguf", weights=False)) as model:
        named = {model.token_text(token) for token in model.end_tokens()} & {"<|im_end|>"}  # known by its text
        assert model.end_tokens() >= {0, 5, 6} and named


def test_without_a_gpu_the_place_of_the_kv_cache_changes_nothing() -> None:
    rows = []
    with closing(LlamaModel.load(DRAFT_MODEL, gpu_layers=-1)) as model:
        for kv_on_gpu in (True, False):
            with closing(
                LlamaContext(model, slots=1, context=64, rows_max=32, threads=1, kv_on_gpu=kv_on_gpu)
            ) as context:
                rows.append(context.decode([Rows(0, 0, range(5, 29))])[0].copy())
    assert np.array_equal(*rows)
