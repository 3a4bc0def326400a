"""What a GGUF file of a bundled model holds: read back to train on, and written for the platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from inference.bundled import CHAT_MODEL
from training.layout import halved, interleaved, tensor_names
from training.shape import Shape
from training.vocabulary import CONTROL, END_OF_TEXT, END_OF_TURN, MARKS, PRE_TOKENIZER, Vocabulary

ARCHITECTURE = "llama"
AUTHOR = "project authors"
LICENCE = "Apache-2.0"
DESCRIPTION = "Tiny chat model trained from scratch on synthetic data"

Kind: TypeAlias = Literal["q8_0", "f32"]
Weights: TypeAlias = Mapping[str, NDArray[np.float32]]

_FILE_TYPES = {"q8_0": LlamaFileType.MOSTLY_Q8_0, "f32": LlamaFileType.ALL_F32}


@dataclass(frozen=True, slots=True)
class Bundle:
    """`weights` by the names and in the order of our parameters. `temperature`: of requests that state none, if a file
    says it; what the chat model was trained to copy and compute has one right next token."""

    title: str
    shape: Shape
    weights: Weights
    vocabulary: Vocabulary
    template: str
    temperature: float | None = 0.0

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Quantised weights become what they stand for. Raises ValueError for a file of another making."""
        reader = GGUFReader(path)
        vocabulary, template = _speech(reader)
        shape = _shape(reader)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        names = tensor_names(shape)
        if set(tensors) != set(names.values()):
            raise ValueError(f"{path} is no model of this package: its tensors have other names")
        weights = {
            ours: halved(ours, dequantize(tensors[theirs].data, tensors[theirs].tensor_type).astype(np.float32), shape)
            for ours, theirs in names.items()
        }
        usual = reader.get_field("general.sampling.temp")
        temperature = None if usual is None else float(usual.contents())
        return cls(_value(reader, "general.name"), shape, weights, vocabulary, template, temperature)

    def write(self, path: Path, kind: Kind) -> None:
        """Norms stay f32 in every kind. Whoever reads `path` meanwhile sees the old file."""
        partial = path.with_name(path.name + ".partial")
        writer = GGUFWriter(partial, ARCHITECTURE)
        self._add_facts(writer, kind)
        self._add_vocabulary(writer)
        names = tensor_names(self.shape)
        for ours, theirs in names.items():
            tensor = np.ascontiguousarray(interleaved(ours, self.weights[ours], self.shape))
            if kind == "q8_0" and tensor.ndim == 2:
                eight_bit = GGMLQuantizationType.Q8_0
                writer.add_tensor(theirs, quantize(tensor, eight_bit), raw_dtype=eight_bit)
            else:
                writer.add_tensor(theirs, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(path)

    def _add_facts(self, writer: GGUFWriter, kind: Kind) -> None:
        shape = self.shape
        writer.add_name(self.title)
        writer.add_author(AUTHOR)
        writer.add_license(LICENCE)
        writer.add_description(DESCRIPTION)
        if self.temperature is not None:
            writer.add_sampling_temp(self.temperature)
        writer.add_context_length(shape.ctx)
        writer.add_embedding_length(shape.d_model)
        writer.add_block_count(shape.n_layer)
        writer.add_feed_forward_length(shape.d_ff)
        writer.add_head_count(shape.n_head)
        writer.add_head_count_kv(shape.n_kv)
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
        writer.add_rope_dimension_count(shape.head_dim)
        writer.add_rope_freq_base(shape.rope_theta)
        writer.add_layer_norm_rms_eps(shape.eps)
        writer.add_vocab_size(shape.vocab)
        writer.add_file_type(_FILE_TYPES[kind])
        if kind != "f32":
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)

    def _add_vocabulary(self, writer: GGUFWriter) -> None:
        vocabulary = self.vocabulary
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(PRE_TOKENIZER)
        writer.add_token_list(list(vocabulary.tokens))
        writer.add_token_types([_token_type(token) for token in vocabulary.tokens])
        writer.add_token_merges([" ".join(merge) for merge in vocabulary.merges])
        writer.add_bos_token_id(vocabulary.id(END_OF_TEXT))
        writer.add_eos_token_id(vocabulary.id(END_OF_TURN))
        writer.add_eot_token_id(vocabulary.id(END_OF_TURN))
        writer.add_pad_token_id(vocabulary.id(END_OF_TEXT))
        writer.add_add_bos_token(False)
        writer.add_chat_template(self.template)


def bundled_vocabulary() -> Vocabulary:
    return _speech(GGUFReader(CHAT_MODEL))[0]


def bundled_template() -> str:
    return _speech(GGUFReader(CHAT_MODEL))[1]


def _speech(reader: GGUFReader) -> tuple[Vocabulary, str]:
    tokens = _value(reader, "tokenizer.ggml.tokens")
    merges = (merge.split(" ") for merge in _value(reader, "tokenizer.ggml.merges"))
    vocabulary = Vocabulary(tuple(tokens), tuple((left, right) for left, right in merges))
    return vocabulary, _value(reader, "tokenizer.chat_template")


def _shape(reader: GGUFReader) -> Shape:
    def fact(name: str) -> Any:
        return _value(reader, f"{ARCHITECTURE}.{name}")

    return Shape(
        vocab=fact("vocab_size"),
        d_model=fact("embedding_length"),
        n_layer=fact("block_count"),
        n_head=fact("attention.head_count"),
        n_kv=fact("attention.head_count_kv"),
        head_dim=fact("attention.key_length"),
        d_ff=fact("feed_forward_length"),
        ctx=fact("context_length"),
        rope_theta=fact("rope.freq_base"),
        eps=float(np.format_float_positional(np.float32(fact("attention.layer_norm_rms_epsilon")), unique=True)),
    )


def _value(reader: GGUFReader, name: str) -> Any:
    if (field := reader.get_field(name)) is None:
        raise ValueError(f"the file has no {name}: it is no model of this package")
    return field.contents()


def _token_type(token: str) -> TokenType:
    if token in CONTROL:
        return TokenType.CONTROL
    return TokenType.USER_DEFINED if token in MARKS else TokenType.NORMAL
