"""Models by name: those that ship with the project, and those that can be pulled from a model hub or package registry,
which are listed in inference/bundled/presets.toml."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.bundled import ADAPTER, ADAPTER_TEMPLATE, CHAT_MODEL, DRAFT_MODEL, EMBEDDER, FOLDER
from inference.errors import ModelNotLoaded
from inference.provisioning.memory import Proportions

# A file of the hub that is not in the catalogue: OWNER/REPOSITORY/FILE.gguf; the file may be in a folder.
HUB_FILE = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)/(?P<file>([\w-][\w.-]*/)*[\w-][\w.-]*\.gguf)")


@dataclass(frozen=True, slots=True)
class Bundled:
    name: str
    path: Path
    purpose: str
    card: Path


@dataclass(frozen=True, slots=True)
class Preset:
    """A file of a model hub, or of a package in Python's registry. `size` is in bytes, rounded if the exact size is
    unknown."""

    name: str
    repository: str
    file: str
    size: int
    context: int
    shape: tuple[int, int, int, int, int]  # layers, width, heads, KV heads, head size
    licence: str
    windows: tuple[int, int] = (0, 0)  # tokens of a sliding window, and how many of the layers have one
    recurrent: tuple[int, int] = (0, 0)  # layers with a state instead of keys and values, and its bytes
    sha256: str | None = None  # None: unknown offline
    sees: bool = False  # multimodal; the file holds only the part for text
    draft: str | None = None  # the preset that can draft for this one: same vocabulary, much smaller
    note: str = ""
    package: str | None = None  # NAME==VERSION of the package that contains `file`; `repository` is then the package's

    @property
    def file_name(self) -> str:
        """Its name in the folder of models."""
        return self.file.rsplit("/", 1)[-1]

    @property
    def proportions(self) -> Proportions:
        return Proportions(self.size, self.context, *self.shape, self.shape[-1], *self.windows, *self.recurrent)

    def url(self, hub: str) -> str:
        return f"{hub.rstrip('/')}/{self.repository}/resolve/main/{self.file}"


@dataclass(frozen=True, slots=True)
class Adapted:
    """A preset with a bundled adapter: made of both on this machine, in the folder of models."""

    name: str
    base: Preset
    adapter: Path
    template: Path
    context: int
    size: int
    purpose: str
    card: Path

    @property
    def file_name(self) -> str:
        return f"{self.name}-q8_0.gguf"

    @property
    def metadata(self) -> Mapping[str, str | int | float]:
        """What its file says otherwise than that of the preset. It was trained to copy and to compute, so what it is
        surest of is best."""
        return {
            "general.name": self.name,
            "tokenizer.chat_template": self.template.read_text("utf-8"),
            "llama.context_length": self.context,
            "general.sampling.temp": 0.0,
        }

    def is_current(self, path: Path) -> bool:
        """Whether this file was made of the adapter that is bundled now."""
        parts = (self.adapter, self.template)
        return path.is_file() and path.stat().st_mtime >= max(part.stat().st_mtime for part in parts)


BUNDLED = (
    Bundled("demo-chat", CHAT_MODEL, "answers with tools and documents, cannot chat", FOLDER / "MODEL_CARD.md"),
    Bundled("demo-draft", DRAFT_MODEL, "draft of demo-chat", FOLDER / "MODEL_CARD.md"),
    Bundled("minilm-l6-v2", EMBEDDER, "embeddings", FOLDER / "minilm-NOTICE.txt"),
)


def _listed(told: Mapping[str, Any]) -> Preset:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    return Preset(**fields)


PRESETS = tuple(map(_listed, tomllib.loads((FOLDER / "presets.toml").read_text("utf-8"))["preset"]))

SMOL_CHAT = Adapted(
    name="smol-chat",
    base=PRESETS[0],
    adapter=ADAPTER,
    template=ADAPTER_TEMPLATE,
    context=4096,  # the adapter learned from conversations of far less; the cache takes half of the memory
    size=144_811_136,
    purpose="chats a little, answers with tools and documents; SmolLM2-135M-Instruct, Apache-2.0",
    card=FOLDER / "SMOL_CHAT_CARD.md",
)


def bundled(name: str) -> Bundled | None:
    return next((model for model in BUNDLED if model.name == name), None)


def preset(name: str) -> Preset | None:
    return next((model for model in PRESETS if model.name == name), None)


def preset_of(path: Path) -> Preset | None:
    """The preset whose file has this name."""
    return next((model for model in PRESETS if model.file_name == path.name), None)


def names_of(path: Path) -> list[str]:
    """What people call the model of this file: its names in this catalogue, and the file with and without extension."""
    listed = [model.name for model in BUNDLED if model.path == path]
    listed += [SMOL_CHAT.name] if path.name == SMOL_CHAT.file_name else []
    pulled = preset_of(path)
    return [*listed, *([pulled.name] if pulled else []), path.stem, path.name]


def purpose_of(name: str) -> str:
    """What one of our models can do; empty for any other."""
    return next((model.purpose for model in (*BUNDLED, SMOL_CHAT) if model.name == name), "")


def files_in(folder: Path) -> list[Path]:
    """The models in a folder, by name."""
    return sorted(folder.glob("*.gguf"))


def find(choice: Path | None, folder: Path) -> Path:
    """The file that the user means: a path, a name of this catalogue, or a file of `folder` with or without extension.

    None means smol-chat, or the bundled chat model where it was not made. Raises ModelNotLoaded, listing the choices.
    """
    if choice is None:
        made = folder / SMOL_CHAT.file_name
        return made if made.is_file() else CHAT_MODEL
    if (path := Path(os.path.expanduser(choice))).is_file():
        return path
    name = str(choice)
    if len(choice.parts) != 1:
        raise ModelNotLoaded(f"no model file at {path}: give a GGUF file or a model from `firsttoken models list`")
    if model := bundled(name):
        return model.path
    known = SMOL_CHAT if name == SMOL_CHAT.name else preset(name)
    names = (known.file_name,) if known else (name, f"{name}.gguf")
    for candidate in names:
        if (folder / candidate).is_file():
            return folder / candidate
    if known:
        raise ModelNotLoaded(f"{name} is not downloaded yet: firsttoken models pull {name}")
    here = ", ".join([*(model.name for model in BUNDLED), *(file.name for file in files_in(folder))])
    raise ModelNotLoaded(f"no model {name}: available are {here}; `firsttoken models list` shows what can be pulled")
