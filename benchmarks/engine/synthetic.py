"""Chat models of any size without a download: GGUF files of the llama architecture with random Q8_0 weights.

Speed does not depend on the values of the weights. The vocabulary is designed so that the length of a prompt is known
without a tokenizer: every word of two made-up syllables is a single token, including the space before it. The model
generates only such words, so each token appears as text immediately, and it never ends a turn by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
WORDS = [first + second for first in SYLLABLES for second in SYLLABLES]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPACE = "\u0120"  # how GPT-2's vocabularies write the space before a word
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 32_000
CONTEXT = 32_768
HEAD = 64
KV_HEADS = 2
BLOCK = 32  # weights that share a scale in Q8_0: a half-precision number, then one byte each
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
SPREAD = 127 / 3**0.5  # standard deviation of bytes drawn evenly from -127 to 127


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a model; `name` is its approximate number of weights."""

    name: str
    width: int
    layers: int
    feed_forward: int


SHAPES = {shape.name: shape for shape in (Shape("0.1B", 768, 8, 2048), Shape("0.4B", 896, 24, 4864))}
# For a software GPU, and for real ones.
EXTREMES = {
    shape.name: shape
    for shape in (Shape("0.02B", 256, 4, 768), Shape("1B", 2048, 16, 8192), Shape("7B", 4096, 32, 14336))
}
ALL_SHAPES = {**SHAPES, **EXTREMES}


def synthetic(shape: Shape, folder: Path) -> Path:
    """The path of the model, which is written into `folder` unless it exists. Deterministic."""
    path = folder / f"synthetic-{shape.name}-q8_0.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        _write(shape, unfinished)
        unfinished.rename(path)
    return path


def byte_tokens() -> list[str]:
    """The base vocabulary of byte-level BPE, one token for each byte."""
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    rest = [chr(256 + i) for i in range(256 - len(letters))]  # GPT-2's substitutes for bytes that are not letters
    return [*letters, *rest]


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE in which every word of WORDS is one token, alone and after a space."""
    merged = [*SYLLABLES, *WORDS, *(SPACE + word for word in WORDS)]
    merges = [" ".join(syllable) for syllable in SYLLABLES]
    merges += [f"{word[:2]} {word[2:]}" for word in WORDS]
    merges += [f"{SPACE} {word}" for word in WORDS]
    tokens = [*SPECIAL, *byte_tokens(), *merged]
    return tokens + [f"<unused {i}>" for i in range(VOCABULARY - len(tokens))], merges


def _write(shape: Shape, path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, shape)
    tokens = _add_vocabulary(writer)
    said = np.array([token.startswith(SPACE) and len(token) > 1 for token in tokens])
    for name, tensor in tensors(shape, VOCABULARY):
        if name == OUTPUT:
            tensor[~said] = 0
        add_tensor(writer, name, tensor)
    finish(writer)


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: NDArray[np.float32] | NDArray[np.uint8]) -> None:
    """Add a tensor; one of bytes is Q8_0 data."""
    writer.add_tensor(name, tensor, raw_dtype=None if tensor.dtype == np.float32 else gguf.GGMLQuantizationType.Q8_0)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"synthetic-{shape.name}")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.width // HEAD)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_dimension_count(HEAD)


def _add_vocabulary(writer: gguf.GGUFWriter) -> list[str]:
    tokens, merges = vocabulary()
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(SPECIAL.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    return tokens


def tensors(shape: Shape, vocabulary: int) -> Iterator[tuple[str, NDArray[np.float32] | NDArray[np.uint8]]]:
    """Random tensors by the names that llama.cpp expects; the same at every call."""
    random = np.random.default_rng(0)
    width, kv = shape.width, KV_HEADS * HEAD
    ones = np.ones(width, np.float32)
    by_width, by_inner = width**-0.5, shape.feed_forward**-0.5
    yield EMBEDDING, quantised(random, vocabulary, width, 1.0)
    yield "output_norm.weight", ones
    yield OUTPUT, quantised(random, vocabulary, width, by_width)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", ones
        yield block + "attn_q.weight", quantised(random, width, width, by_width)
        yield block + "attn_k.weight", quantised(random, kv, width, by_width)
        yield block + "attn_v.weight", quantised(random, kv, width, by_width)
        yield block + "attn_output.weight", quantised(random, width, width, by_width)
        yield block + "ffn_norm.weight", ones
        yield block + "ffn_gate.weight", quantised(random, shape.feed_forward, width, by_width)
        yield block + "ffn_up.weight", quantised(random, shape.feed_forward, width, by_width)
        yield block + "ffn_down.weight", quantised(random, width, shape.feed_forward, by_inner)


def quantised(random: np.random.Generator, rows: int, columns: int, deviation: float) -> NDArray[np.uint8]:
    """Random weights with this standard deviation, as Q8_0 bytes of shape (rows, columns / 32 * 34)."""
    blocks = np.empty((rows, columns // BLOCK, 2 + BLOCK), np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(deviation / SPREAD).tobytes(), np.uint8)
    blocks[..., 2:] = random.integers(-127, 128, (rows, columns // BLOCK, BLOCK), np.int8).view(np.uint8)
    return blocks.reshape(rows, -1)
