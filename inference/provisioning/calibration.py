"""The fastest attention for a model on a machine, and its GPU's best number of prompt tokens per step: measured once,
and kept in a file for later starts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inference.attention import ALL, AUTO, Attention
from inference.attention import attention as usual
from inference.config import EngineConfig, default_threads
from inference.llama import LlamaModel, build_features, devices, has_gpu
from inference.provisioning import machine
from inference.provisioning.memory import Footprint, Proportions
from inference.provisioning.speed import HISTORY_TOKENS, PROMPT_ROWS, SIZES, STREAMS, Pace, best_size, fastest

SLOWDOWN_MIN = 1.15  # times the fastest attention; less is noise on a machine with other load
MEMORY_SHARE_MAX = 0.5  # of the free memory, for a measurement that was not requested
PREFILL = "prefill_tokens"
KEPT_MAX = 64  # models and settings; the oldest are dropped first


def chosen(paces: Sequence[Pace], rule: Attention) -> Attention:
    """The fastest, unless the default is about as fast, with which answers can be deterministic. A kind without a pace
    crashes on this machine."""
    best, ours = fastest(paces), next((pace for pace in paces if pace.attention == rule), None)
    return best.attention if ours is None or ours.slower_than(best) > SLOWDOWN_MIN else rule


def affordable(config: EngineConfig) -> bool:
    """Whether it is safe to measure beside a serving worker: that loads the model again and creates a context per kind.

    On a GPU it is not: the memory it takes there may be needed by the worker's next step.
    """
    if has_gpu() and config.gpu_layers:
        return False
    free = machine.memory_available()
    if free is None:
        return True
    made = replace(config, parallel=max(STREAMS), resident=0, context=HISTORY_TOKENS + PROMPT_ROWS, draft_path=None)
    with closing(LlamaModel.load(config.model_path, weights=False)) as model:
        model_alone = Proportions.of(model)
    contexts = [Footprint.of(model_alone, made.with_measured(attention)) for attention in ALL]
    return model_alone.weight_bytes + sum(each.kv_cache + each.working for each in contexts) < MEMORY_SHARE_MAX * free


class Calibrations:
    """Results, keyed by everything that they depend on. An unusable file counts as empty."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def applied(self, config: EngineConfig) -> EngineConfig:
        """The configuration with measured values in place of the defaults."""
        return config.with_measured(self.get(config), self.prefill(config))

    def get(self, config: EngineConfig) -> Attention | None:
        entry = self._entry(config)
        return next((each for each in ALL if asdict(each).items() <= entry.items()), None)

    def prefill(self, config: EngineConfig) -> int | None:
        """Prompt tokens per step."""
        size = self._entry(config).get(PREFILL)
        return size if size in SIZES else None

    def put(self, config: EngineConfig, paces: Sequence[Pace]) -> Attention:
        """Returns the choice."""
        attention = chosen(paces, usual(AUTO, AUTO, gpu=has_gpu() and config.gpu_layers != 0))
        self._keep(config, asdict(attention))
        return attention

    def put_prefill(self, config: EngineConfig, steps_ms: Mapping[int, float]) -> int:
        """Returns the choice."""
        size = best_size(steps_ms)
        self._keep(config, {PREFILL: size})
        return size

    def _entry(self, config: EngineConfig) -> dict[str, Any]:
        try:
            entry = self._read().get(_key(config))
        except OSError:
            return {}
        return entry if isinstance(entry, dict) else {}

    def _keep(self, config: EngineConfig, facts: dict[str, Any]) -> None:
        """Add facts to an entry."""
        own = _key(config)
        others = {key: entry for key, entry in self._read().items() if key != own}
        kept = [*others.items(), (own, {**self._entry(config), **facts})][-KEPT_MAX:]
        new = self._file.with_name(f"{self._file.name}.{os.getpid()}")  # several workers may share a home directory
        try:
            new.write_text(json.dumps(dict(kept), indent=1))
            new.replace(self._file)
        except OSError:
            new.unlink(missing_ok=True)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            read = json.loads(self._file.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return read if isinstance(read, dict) else {}


def _key(config: EngineConfig) -> str:
    """Results differ by processor, device, build, model and number of threads."""
    model = config.model_path.stat()
    facts = (
        machine.cpu_name(),
        [device.description for device in devices()],
        version("llama_cpp_python"),
        build_features(),
        (config.model_path.name, model.st_size, model.st_mtime_ns),
        (config.threads or default_threads(), config.gpu_layers),
    )
    return f"{config.model_path.stem} {hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"
