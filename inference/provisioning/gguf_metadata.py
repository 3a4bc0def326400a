"""The metadata of a GGUF file, read without loading its weights."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inference.errors import InvalidTemplate
from inference.llama import LlamaModel
from inference.message_fitting import Capabilities
from inference.sampling_defaults import SamplingDefaults
from inference.template import ChatTemplate

# Markers in a chat template that show the format the model was trained on; the first one found counts.
TEMPLATE_MARKS = {
    "<|im_start|>": "ChatML",
    "<|start_header_id|>": "Llama 3",
    "<start_of_turn>": "Gemma",
    "<|start_of_role|>": "Granite",
    "[INST]": "Mistral",
    "<|assistant|>": "Phi",
}


# A digest, such as a folder of a download cache has, or what exporters call their output.
NO_TITLE = re.compile(r"|[0-9a-f]{16,}|((checkpoint|model|output|merged|hf|tmp)[ _-]?\d*)+")


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
    capabilities: Capabilities | None  # of the template
    system: str  # the default of the template
    sampling: SamplingDefaults
    licence: str


def read_metadata(model: LlamaModel) -> GgufMetadata:
    metadata = model.metadata()
    layers, _, _ = model.kv_shape
    kinds = (metadata.get("tokenizer.ggml.model", ""), metadata.get("tokenizer.ggml.pre", ""))
    template = None
    with suppress(InvalidTemplate):
        template = ChatTemplate(model.chat_template, bos=model.bos_text, eos=model.eos_text)
    return GgufMetadata(
        path=model.path,
        file_bytes=model.path.stat().st_size,
        title=title(metadata.get("general.name", ""), model.name),
        architecture=metadata.get("general.architecture", "unknown"),
        parameters=model.parameters,
        quantisation=model.quantisation,
        context=model.context_length,
        layers=layers,
        dimensions=model.dimensions,
        vocabulary=model.vocabulary_size,
        tokenizer=" ".join(kind for kind in kinds if kind),
        template=template_kind(model.chat_template),
        capabilities=template.capabilities if template else None,
        system=template.default_system() if template else "",
        sampling=SamplingDefaults.read(metadata),
        licence=metadata.get("general.license", "not stated"),
    )


def title(stated: str, file_name: str) -> str:
    """The title that the file states, unless its converter took it from the folder of a training run or a download.

    Such a title has the words of the file's name, and more that the name does not have; or it is no name at all.
    """
    words, known = (set(re.findall(r"[a-z0-9.]+", text.lower())) for text in (stated, file_name))
    is_of_a_run = words & known and len(words - known) > len(words & known)
    return file_name if is_of_a_run or NO_TITLE.fullmatch(stated.strip().lower()) else stated


def template_kind(template: str | None) -> str:
    """For display."""
    if template is None:
        return "none: not a chat model"
    return next((name for mark, name in TEMPLATE_MARKS.items() if mark in template), "of another family")
