"""The metadata of a GGUF file, read without loading its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.llama import LlamaModel

# Markers in a chat template that show the format the model was trained on; the first one found counts.
TEMPLATE_MARKS = {
    "<|im_start|>": "ChatML",
    "<|start_header_id|>": "Llama 3",
    "<start_of_turn>": "Gemma",
    "<|start_of_role|>": "Granite",
    "[INST]": "Mistral",
    "<|assistant|>": "Phi",
}
TOOLS = "tools"  # the variable in which templates get them


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    path: Path
    file_bytes: int
    title: str
    architecture: str
    parameters: int
    quantisation: str
    context: int
    layers: int
    dimensions: int
    vocabulary: int
    tokenizer: str
    template: str
    licence: str


def read_metadata(model: LlamaModel) -> GgufMetadata:
    metadata = model.metadata()
    layers, _, _ = model.kv_shape
    kinds = (metadata.get("tokenizer.ggml.model", ""), metadata.get("tokenizer.ggml.pre", ""))
    return GgufMetadata(
        path=model.path,
        file_bytes=model.path.stat().st_size,
        title=metadata.get("general.name", model.name),
        architecture=metadata.get("general.architecture", "unknown"),
        parameters=model.parameters,
        quantisation=model.quantisation,
        context=model.context_length,
        layers=layers,
        dimensions=model.dimensions,
        vocabulary=model.vocabulary_size,
        tokenizer=" ".join(kind for kind in kinds if kind),
        template=template_kind(model.chat_template),
        licence=metadata.get("general.license", "not stated"),
    )


def template_kind(template: str | None) -> str:
    """For display: the family, and whether the model was trained with tools."""
    if template is None:
        return "none: not a chat model"
    family = next((name for mark, name in TEMPLATE_MARKS.items() if mark in template), "of another family")
    return f"{family}, {'with' if TOOLS in template else 'without'} tools"
