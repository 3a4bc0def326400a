"""A chat model that recites the task: every token determines the next one, and each step has a first token of its own.

The layers are computed as in any other model, so its speed is that of a model of its shape; only their contribution is
zeroed. The chat template selects the step: it counts the answers so far and ends the prompt with a mark.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, TokenType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from benchmarks.agent_loop.task import STEPS, turn
from benchmarks.engine.synthetic import EMBEDDING, OUTPUT, Shape, add_tensor, byte_tokens, describe, finish, tensors
from inference.bundled import CHAT_MODEL

SHAPE = Shape("actor-11M", 384, 6, 1024)  # the shape of the bundled model
VOCABULARY = 5120
END = "<|im_end|>"
MARKS = [f"<|step {step}|>" for step in range(STEPS + 1)]
CONTROL = ["<|endoftext|>", "<|im_start|>", END, *MARKS]
PIECES = [piece for step in range(STEPS + 1) for piece in turn(step)]
LETTERS = [*byte_tokens(), "Ġa"]  # a vocabulary of this kind has at least one merge
TOKENS = [*CONTROL, *LETTERS, *PIECES]
ZEROED = ("attn_output.weight", "ffn_down.weight")  # through which the layers would change the prediction
ANSWER = "{{- '<|im_start|>assistant\\n' -}}"
MARK = "{{- '<|step ' ~ seen.answers ~ '|>' -}}"


def actor(folder: Path) -> Path:
    """The model's file, written into `folder` unless it exists. Deterministic."""
    path = folder / f"{SHAPE.name}-q8_0.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        _write(unfinished)
        unfinished.rename(path)
    return path


def template() -> str:
    """The bundled model's template, with the mark of the step before every answer."""
    field = gguf.GGUFReader(CHAT_MODEL).get_field(gguf.Keys.Tokenizer.CHAT_TEMPLATE)
    assert field is not None
    plain = str(field.contents())
    counted = "{%- set seen.answers = seen.answers + 1 -%}"
    before, *history, last = plain.split(ANSWER)
    told = before + "".join(ANSWER + MARK + counted + part for part in history) + ANSWER + MARK + last
    return "{%- set seen = namespace(answers=0) -%}" + told


def successors() -> list[tuple[int, int]]:
    """Pairs of a token and the one that follows it, for all of the model's output."""
    lines = [[mark, *turn(step), END] for step, mark in enumerate(MARKS)]
    return [(TOKENS.index(one), TOKENS.index(other)) for line in lines for one, other in pairwise(line)]


def _write(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, SHAPE)
    _add_vocabulary(writer)
    embedding: NDArray[np.uint8] | NDArray[np.float32] | None = None
    for name, tensor in tensors(SHAPE, VOCABULARY):
        if name == EMBEDDING:
            embedding = tensor
        elif name == OUTPUT:
            assert embedding is not None
            tensor = _output(embedding)
        elif name.endswith(ZEROED):
            tensor[:] = 0
        add_tensor(writer, name, tensor)
    finish(writer)


def _output(embedding: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.uint8]:
    """The output matrix as Q8_0. The row of a token's successor resembles the token's embedding, so the successor is
    the most likely by far."""
    said = dequantize(embedding, GGMLQuantizationType.Q8_0)
    output = np.zeros_like(said)
    for token, following in successors():
        output[following] += said[token]
    return quantize(output, GGMLQuantizationType.Q8_0).view(np.uint8)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    unused = [f"<unused {i}>" for i in range(VOCABULARY - len(TOKENS))]
    kinds = (
        [TokenType.CONTROL] * len(CONTROL) + [TokenType.NORMAL] * len(LETTERS) + [TokenType.USER_DEFINED] * len(PIECES)
    )
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS + unused)
    writer.add_token_merges(["Ġ a"])
    writer.add_token_types(kinds + [TokenType.UNUSED] * len(unused))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(CONTROL.index(END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template())
