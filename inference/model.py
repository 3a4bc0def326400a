"""The chat model: template, tokenizer and engine behind one interface, used by the agent loop and the routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import isfinite
from typing import Any

from inference.codec import Codec
from inference.config import EngineConfig, default_threads
from inference.engine.engine import Engine
from inference.errors import ModelNotLoaded, OutOfDeviceMemory
from inference.generation import ANY_TERMS, Due, Priority, Sampling, Terms
from inference.kvcache.disk import DiskTier
from inference.llama import LlamaContext, LlamaModel, Progress, Projector, load_weights
from inference.picture import VisionEncoder
from inference.prompt import ChatMessage
from inference.provisioning.fit import are_all, fewer_layers, gpu_layers
from inference.provisioning.memory import Footprint, Proportions
from inference.request import Handle
from inference.speculative.controller import Drafter
from inference.speculative.draft_model import CATCH_UP_TOKENS_MAX, DraftModel, same_vocabulary
from inference.speculative.prompt_lookup import PromptLookup
from inference.text_model import TextModel
from inference.weight_placement import GPU, Split

log = logging.getLogger("firsttoken.model")


class ChatModel(TextModel):
    """`load` blocks (seconds for a large file), so call it on a thread. `start` needs a running event loop."""

    def __init__(
        self,
        weights: LlamaModel,
        backend: LlamaContext,
        config: EngineConfig,
        drafter: Drafter | None = None,
        vision: VisionEncoder | None = None,
        codec: Codec | None = None,
    ) -> None:
        super().__init__(weights, backend.fingerprint, backend.context, codec)
        self.adapters = config.adapters
        self.vision = vision
        self._on_gpu = weights.on_gpu
        self._footprint = Footprint.of(Proportions.of(weights), config, gpu=self._on_gpu)
        disk = None
        if config.disk_folder and config.disk_bytes_max:
            disk = DiskTier(config.disk_folder, backend.fingerprint, config.disk_bytes_max, self._turns)
        self._engine = Engine(backend, self._pieces, self._end_tokens, config, drafter, disk, vision)

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress | None = None, codec: Codec | None = None) -> ChatModel:
        """`progress` is called with the share of the weights that is loaded, from 0 to 1. A `codec` was made before, of
        another model on the same file.

        Layers for which a GPU turns out to have no room (others use it too) go to the CPU, unless the number of layers
        was configured. Raises ModelNotLoaded, also if the file has changed since the codec was made; InvalidTemplate
        for a model without a usable chat template.
        """
        layers = gpu_layers(config)
        while True:
            try:
                return cls._loaded(config, layers, progress, codec)
            except OutOfDeviceMemory as error:
                if config.gpu_layers >= 0 or not layers:
                    raise OutOfDeviceMemory(f"{error}: lower --gpu-layers, --context or --streams") from None
                fewer = fewer_layers(config, layers)
                log.warning("%s: %s of its layers go there", error, fewer or "none")
                layers = fewer

    @classmethod
    def _loaded(cls, config: EngineConfig, layers: int, progress: Progress | None, codec: Codec | None) -> ChatModel:
        with ExitStack() as undo:
            weights = load_weights(
                config.model_path,
                gpu_layers=layers,
                split=Split.parse(config.gpu_split),
                load_mode=config.load_mode,
                progress=progress,
            )
            undo.callback(weights.close)
            if weights.on_gpu and are_all(layers, weights.kv_shape[0]):
                config = config.offloaded
            context = config.context_of(weights.context_length)
            of_another = codec is not None and codec.source.file_version != weights.file_version
            if of_another or not weights.is_current:  # its states on disk would be taken for those of the new file
                raise ModelNotLoaded(f"{config.model_path} changed while it was loaded: try again")
            with ThreadPoolExecutor(1, "codec") as beside:  # meanwhile the kernel makes the pages of the cache
                making = None if codec else beside.submit(Codec, weights, context)
                backend = _backend_of(weights, config, context)
                undo.callback(backend.close)
                codec = making.result() if making else codec
            drafter = _load_drafter(weights, context, config, undo) if backend.drops else None
            if (config.draft_path or config.lookup) and not backend.drops:
                log.warning("%s gets no drafts: its recurrent state cannot drop a rejected token", weights.name)
            vision = None
            if config.projector_path:
                vision = Projector(config.projector_path, weights, config.threads or default_threads())
                undo.callback(vision.close)
            model = cls(weights, backend, config, drafter, vision, codec)
            undo.pop_all()
            return model

    async def start(self) -> None:
        """Start the engine and run one step, so that the first request does not pay for cold memory.

        Raises ModelNotLoaded if the step gives no numbers: every answer would be nonsense or empty.
        """
        self._engine.start()
        first = Sampling(max_tokens=1, top_logprobs=0, ignore_eos=True)
        warm = self.generate(self.encode(self.render([ChatMessage("user", "Hello")])), first)
        logprobs = [told.logprob async for delta in warm for told in delta.logprobs]
        if not all(map(isfinite, logprobs)):
            what = "it or one of its adapters" if self.adapters else "its file"
            raise ModelNotLoaded(f"{self.name} gives no finite logits: {what} is damaged")

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.close)
        if not self._engine.lost:
            await super().close()

    @property
    def lost(self) -> bool:
        """Whether this process has lost the device: it should exit and be restarted."""
        return self._engine.lost

    @property
    def failed(self) -> str | None:
        """Why the model can no longer answer, or None."""
        return self._engine.failed

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> Handle:
        held = sampling.grammar.start() if sampling.grammar else None
        return self._engine.submit(prompt, sampling.kept_from(self._end_tokens), terms, held)

    def expect(self, due: Due, *, salt: str = "", priority: Priority = Priority.STANDARD) -> None:
        self._engine.expect(due, salt=salt, priority=priority)

    def prefill_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> Handle | None:
        return self._engine.prefill_ahead(prompt, salt=salt, exact=exact)

    def share(self, beginning: Sequence[int]) -> None:
        self._engine.share(beginning)

    @property
    def prefill_token_s(self) -> float | None:
        return self._engine.prefill_token_s

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or runs, including prefills ahead."""
        return bool(self._engine.waiting or self._engine.running)

    @property
    def steps(self) -> int:
        """Steps computed so far: while this does not change, no request progresses."""
        return self._engine.totals["steps"]

    def stats(self) -> dict[str, Any]:
        """See also `Engine.stats`. The bytes are those of this process: with a GPU, they are the device's."""
        known = {**super().stats(), **self._engine.stats()}
        if self._on_gpu:
            return {**known, "device": "gpu"}
        held = {"kv_cache_bytes": self._footprint.kv_cache, "working_bytes": self._footprint.working}
        return {**known, "device": "cpu", **held}


def _backend_of(weights: LlamaModel, config: EngineConfig, context: int) -> LlamaContext:
    return LlamaContext(
        weights,
        slots=config.slots,
        context=context,
        rows_max=config.rows_max,
        outputs_max=config.outputs_max,
        threads=config.threads or default_threads(),
        attention=config.attention(gpu=weights.on_gpu),
        kv_type=config.kv_type,
        kv_on_gpu=config.kv_place == GPU,
        windowed=config.windowed,
        adapters=config.adapters,
    )


def _load_drafter(weights: LlamaModel, context: int, config: EngineConfig, undo: ExitStack) -> Drafter | None:
    """The weights of a draft model are on a GPU only if the model's layers are.

    Raises ModelNotLoaded, also for a draft model with another vocabulary.
    """
    if config.draft_path is None or not config.draft_max:
        looks = config.draft_max and (config.lookup or config.predictions)
        return PromptLookup(predicted_only=not config.lookup) if looks else None
    draft = load_weights(
        config.draft_path,
        gpu_layers=config.gpu_layers if weights.on_gpu else 0,
        split=Split.parse(config.gpu_split),
        load_mode=config.load_mode,
    )
    undo.callback(draft.close)
    if not same_vocabulary(draft.vocabulary(), weights.vocabulary()):
        raise ModelNotLoaded(f"{draft.path.name} cannot draft for {weights.path.name}: their vocabularies differ")
    backend = LlamaContext(
        draft,
        slots=config.slots,
        context=context,
        rows_max=max(CATCH_UP_TOKENS_MAX, config.slots),
        threads=config.threads or default_threads(),
        attention=config.attention_of_draft(gpu=draft.on_gpu),
        kv_type=config.kv_type,
    )
    undo.callback(backend.close)
    return DraftModel(backend, min(draft.vocabulary_size, weights.vocabulary_size), draft.close)
