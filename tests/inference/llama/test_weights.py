"""A model on a build for a GPU where none of its layers go there, the place of its KV cache, and its vocabulary."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.backend import Chunk
from inference.bundled import DRAFT_MODEL
from inference.llama import LlamaContext, LlamaModel, library, weights
from inference.llama.weights import SHORT_BYTES
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
        assert (context.streams, context.exact) == (True, not on_gpu)


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
                rows.append(context.decode([Chunk(0, 0, range(5, 29))])[0].copy())
    assert np.array_equal(*rows)


def test_only_long_texts_are_tokenised_by_a_call_that_gives_up_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: list[int] = []

    def tokenize(vocabulary: Any, text: bytes, length: int, *rest: Any, call: Any = library.lib.llama_tokenize) -> Any:
        given_up.append(length)
        return call(vocabulary, text, length, *rest)

    with closing(LlamaModel.load(DRAFT_MODEL, weights=False)) as model:
        monkeypatch.setattr(library.lib, "llama_tokenize", tokenize)
        short, long = "What is the port?", "What is the port? " * SHORT_BYTES
        ids = model.tokenize(short, parse_special=False)
        assert model.detokenize(ids).strip() == short and not given_up
        assert model.detokenize(model.tokenize(long, parse_special=False)).strip() == long.strip()
    assert given_up == [len(long)]
