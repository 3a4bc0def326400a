"""A cross-encoder small enough to be checked by hand: BERT with random weights and a head, and the same in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

WORDS = ["what", "is", "the", "port", "default", "8080", "trace", "kept", "days", "seven", "a", "bird", "sings"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CLS, SEP = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
WIDTH, LAYERS, HEADS, CONTEXT = 32, 2, 2, 64
EPSILON = 1e-12

Tensors = dict[str, NDArray[np.float32]]


def random_tensors(outputs: int = 1) -> Tensors:
    random = np.random.default_rng(5)

    def draw(*shape: int) -> NDArray[np.float32]:
        return random.normal(0, 0.3, shape).astype(np.float32)

    tensors = {
        "token_embd.weight": draw(len(VOCABULARY), WIDTH),
        "position_embd.weight": draw(CONTEXT, WIDTH),
        "token_types.weight": draw(1, WIDTH),
        "token_embd_norm.weight": 1 + draw(WIDTH),
        "token_embd_norm.bias": draw(WIDTH),
        "cls.weight": draw(WIDTH, WIDTH),
        "cls.bias": draw(WIDTH),
        "cls.output.weight": draw(outputs, WIDTH),
        "cls.output.bias": draw(outputs),
    }
    for layer in range(LAYERS):
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH, WIDTH),
            ("attn_v", WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_up", 2 * WIDTH, WIDTH),
            ("ffn_down", WIDTH, 2 * WIDTH),
        ):
            tensors[f"blk.{layer}.{name}.weight"] = draw(rows, columns)
            tensors[f"blk.{layer}.{name}.bias"] = draw(rows)
        for name in ("attn_output_norm", "layer_output_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = 1 + draw(WIDTH)
            tensors[f"blk.{layer}.{name}.bias"] = draw(WIDTH)
    return tensors


@dataclass(frozen=True)
class TinyCrossEncoder:
    """`head` and `outputs` make files that cannot rank, or not as one score."""

    path: Path
    outputs: int = 1
    pooling: gguf.PoolingType = gguf.PoolingType.RANK
    head: bool = True
    tensors: Tensors = field(default_factory=random_tensors)

    def write(self) -> Path:
        writer = gguf.GGUFWriter(self.path, "bert")
        writer.add_name("tiny-ranker")
        writer.add_block_count(LAYERS)
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(WIDTH)
        writer.add_feed_forward_length(2 * WIDTH)
        writer.add_head_count(HEADS)
        writer.add_layer_norm_eps(EPSILON)
        writer.add_causal_attention(False)
        writer.add_pooling_type(self.pooling)
        writer.add_classifier_output_labels([f"label {n}" for n in range(self.outputs)])
        self._add_vocabulary(writer)
        for name, tensor in (self.tensors if self.outputs == 1 else random_tensors(self.outputs)).items():
            if self.head or not name.startswith("cls"):
                writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return self.path

    @staticmethod
    def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
        special = VOCABULARY[: -len(WORDS)]
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("default")
        writer.add_token_type_count(1)
        writer.add_token_list([*special, *("\u2581" + word for word in WORDS)])
        writer.add_token_types([gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.NORMAL] * len(WORDS))
        writer.add_bos_token_id(CLS)
        writer.add_eos_token_id(SEP)
        writer.add_sep_token_id(SEP)
        writer.add_unk_token_id(1)
        writer.add_pad_token_id(0)
        writer.add_mask_token_id(4)

    def score(self, query: str, text: str) -> float:
        """The logit of `[CLS] query [SEP] text [SEP]`, computed in numpy."""
        ids = [CLS, *map(VOCABULARY.index, query.split()), SEP, *map(VOCABULARY.index, text.split()), SEP]
        t = self.tensors
        x = t["token_embd.weight"][ids] + t["position_embd.weight"][: len(ids)] + t["token_types.weight"][0]
        x = self._norm("token_embd_norm", x)
        for layer in range(LAYERS):
            x = self._layer(f"blk.{layer}.", x)
        return float(self._linear("cls.output", np.tanh(self._linear("cls", x[:1])))[0, 0])

    def _layer(self, block: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
        q, k, v = (self._heads(self._linear(f"{block}attn_{name}", x)) for name in "qkv")
        weights = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH // HEADS))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        attended = self._linear(f"{block}attn_output", mixed.transpose(1, 0, 2).reshape(len(x), WIDTH))
        x = self._norm(f"{block}attn_output_norm", x + attended)
        up = self._linear(f"{block}ffn_up", x)
        gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        return self._norm(f"{block}layer_output_norm", x + self._linear(f"{block}ffn_down", gelu))

    def _linear(self, name: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"], np.float32)

    def _norm(self, name: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return np.asarray(unit * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"], np.float32)

    @staticmethod
    def _heads(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x.reshape(len(x), HEADS, WIDTH // HEADS).transpose(1, 0, 2)


def texts(*numbers: int) -> Sequence[str]:
    """Texts of so many words each."""
    return [" ".join(WORDS[(number + n) % len(WORDS)] for n in range(number)) for number in numbers]
