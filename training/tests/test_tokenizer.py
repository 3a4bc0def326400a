from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.llama import LlamaModel
from training.bundle import Bundle, bundled_template, bundled_vocabulary
from training.layout import tensor_names
from training.parity import cut_differently
from training.shape import DRAFT, Shape
from training.tokenizer import learn
from training.vocabulary import CONTROL, MARKS, Vocabulary

TEXTS = [
    "<|im_start|>user\nWhat is the weather in Tallinn?<|im_end|>\n",
    'The weather in Tallinn is fine. {"city": "Tallinn", "count": 12}',
    "What is the time in the city of Tallinn? The time is 10:15 in the city.",
] * 3


@pytest.fixture(scope="module")
def learnt() -> Vocabulary:
    return learn(TEXTS, size=400, spaced=20)


def test_a_word_keeps_its_tokens_after_a_blank_and_in_quotes(learnt: Vocabulary) -> None:
    tokenizer = learnt.tokenizer()
    bare, blank, quoted = (tokenizer.encode(text).tokens for text in ("Tallinn", " Tallinn", '"Tallinn"'))
    assert blank == ["Ġ", *bare] and quoted == ['"', *bare, '"']


def test_frequent_words_have_a_token_with_their_blank(learnt: Vocabulary) -> None:
    assert learnt.tokenizer().encode(" is the city").tokens == ["Ġis", "Ġthe", "Ġcity"]


def test_digits_stand_alone_and_markup_is_one_token(learnt: Vocabulary) -> None:
    tokens = learnt.tokenizer().encode("<tool_call>12").tokens
    assert tokens == ["<tool_call>", "1", "2"]
    assert learnt.tokens[: len(CONTROL) + len(MARKS)] == (*CONTROL, *MARKS)
    assert len(set(learnt.tokens)) == len(learnt.tokens) <= 400


def test_llama_cuts_a_learnt_vocabulary_the_same_way(learnt: Vocabulary, tmp_path: Path) -> None:
    shape = replace(DRAFT, n_layer=1, vocab=len(learnt.tokens))
    path = tmp_path / "learnt.gguf"
    Bundle("Learnt", shape, nothing(shape), learnt, bundled_template()).write(path, "f32")
    llama = LlamaModel.load(path, weights=False)
    assert list(cut_differently(learnt.tokenizer(), llama)) == []
    llama.close()


def test_a_vocabulary_survives_its_file(learnt: Vocabulary, tmp_path: Path) -> None:
    for vocabulary in (learnt, bundled_vocabulary()):
        path = tmp_path / "tokenizer.json"
        vocabulary.tokenizer().save(str(path))
        assert Vocabulary.read(path) == vocabulary


def nothing(shape: Shape) -> dict[str, NDArray[np.float32]]:
    """Weights that are all zero."""
    width, keys = shape.d_model, shape.n_kv * shape.head_dim
    rows = {"emb": shape.vocab, "wk": keys, "wv": keys, "gate": shape.d_ff, "up": shape.d_ff}
    weights: dict[str, NDArray[np.float32]] = {}
    for name in tensor_names(shape):
        kind = name.split(".")[-2] if name.endswith("weight") else "norm"
        columns = shape.d_ff if kind == "down" else width
        weights[name] = np.zeros(width if kind == "norm" else (rows.get(kind, width), columns), np.float32)
    return weights
