"""What is trained is what llama.cpp runs: the same tokens, the same logits, there and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.llama import LlamaModel
from training.bundle import Bundle, bundled_template, bundled_vocabulary
from training.checkpoint import Checkpoint
from training.model import fresh
from training.parity import (
    DIFFERENCE_MAX,
    ODD_TEXTS,
    Differs,
    compare,
    compared_with_llama,
    cut_differently,
    llama_logits,
    torch_logits,
)
from training.shape import DRAFT

TINY = replace(DRAFT, n_layer=2, ctx=512)
PROMPT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>"
ANSWERED = PROMPT + "assistant\nHello! How can I help you today?<|im_end|>\n<|im_start|>user\nThank you.<|im_end|>\n"
QUANTISED_ACTIVATIONS = 1.0  # of a logit: with Q8_0 weights llama.cpp rounds what it multiplies them with, too


@pytest.fixture(scope="module")
def untrained() -> Checkpoint:
    model = fresh(TINY, seed=3)
    for layer in model.layers:  # written by no copying circuit, so zero: every matrix shall matter
        torch.nn.init.normal_(layer.down.weight, std=0.05)
    return Checkpoint(TINY, {name: w.detach() for name, w in model.state_dict().items()}, bundled_vocabulary())


def test_an_export_computes_what_was_trained(untrained: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    untrained.bundle("Tiny", bundled_template()).write(path, "f32")
    rows = [list(range(9, 409)), untrained.vocabulary.tokenizer().encode(ANSWERED).ids]
    parity = compare(untrained.model(), path, rows)
    assert parity.places == sum(map(len, rows))
    assert parity.difference < 0.02
    assert parity.same >= 0.99 * parity.places


def test_an_export_of_another_model_is_noticed(untrained: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    other = {name: w + 0.05 if "wk" in name else w for name, w in untrained.weights.items()}
    replace(untrained, weights=other).bundle("Tiny", bundled_template()).write(path, "f32")
    assert compare(untrained.model(), path, [list(range(9, 209))]).difference > DIFFERENCE_MAX


def test_both_cut_odd_texts_into_the_same_tokens() -> None:
    tokenizer, llama = bundled_vocabulary().tokenizer(), LlamaModel.load(CHAT_MODEL, weights=False)
    everything = "".join(map(chr, (*range(1, 0x3000, 7), *range(0x1F600, 0x1F640))))
    assert list(cut_differently(tokenizer, llama, (*ODD_TEXTS, everything))) == []
    llama.close()


def test_another_cut_is_noticed(untrained: Checkpoint) -> None:
    merges = untrained.vocabulary.merges
    other = replace(untrained.vocabulary, merges=(*merges[100:], *merges[:100]))
    llama = LlamaModel.load(CHAT_MODEL, weights=False)
    assert list(cut_differently(other.tokenizer(), llama, ["What the weather is in Tallinn"]))
    llama.close()


@pytest.mark.parametrize("path", [CHAT_MODEL, DRAFT_MODEL])
def test_the_bundled_files_come_out_as_they_went_in(path: Path, tmp_path: Path) -> None:
    again = tmp_path / path.name
    Bundle.read(path).write(again, "q8_0")
    before, after = gguf.GGUFReader(path), gguf.GGUFReader(again)
    facts = [{k: f.contents() for k, f in r.fields.items() if not k.startswith("GGUF.")} for r in (before, after)]
    assert facts[0] == facts[1]
    tensors = {tensor.name: tensor.data for tensor in after.tensors}
    assert all(np.array_equal(tensors[tensor.name], tensor.data) for tensor in before.tensors)


def test_the_bundled_model_says_the_same_in_both() -> None:
    """Wherever one token is clearly the best; rounding decides between near equals."""
    start = Checkpoint.load(CHAT_MODEL)
    ids = start.vocabulary.tokenizer().encode(ANSWERED).ids
    ours, (theirs,) = torch_logits(start.model(), ids), llama_logits(CHAT_MODEL, [ids])
    second, best = np.sort(ours, -1)[:, -2:].T
    clear = best - second > QUANTISED_ACTIVATIONS
    assert clear.sum() > 20
    assert np.array_equal(ours.argmax(-1)[clear], theirs.argmax(-1)[clear])


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("output.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="no model of this package"):
        Checkpoint.load(path)


def test_the_check_refuses_what_differs(untrained: Checkpoint) -> None:
    with pytest.raises(Differs, match="largest difference"):
        compared_with_llama(untrained, bundled_template(), difference_max=0.0)
