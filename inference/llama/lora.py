"""LoRA adapters of a context."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from inference.adapter import Adapter
from inference.errors import AdapterNotLoaded
from inference.llama.library import complaints, lib
from inference.llama.weights import LlamaModel

_REASON = "failed to apply lora adapter: "  # precedes the reason in llama.cpp's last message
_HINT = " (hint: maybe wrong base model?)"


class LoadedAdapters:
    """The adapters of one context, whose model may have other contexts without them. Load them before the context:
    llama.cpp sizes its graphs by the adapters that its model has by then.

    Raises AdapterNotLoaded, in a line that says what is wrong with which file.
    """

    def __init__(self, model: LlamaModel, adapters: Sequence[Adapter]) -> None:
        self._scales = [adapter.scale for adapter in adapters]
        self._handles: list[Any] = []
        try:
            for adapter in adapters:
                self._handles.append(_loaded(model, adapter))
        except AdapterNotLoaded:
            self.close()
            raise

    def apply(self, context: Any) -> None:
        """From the context's next step on. Raises AdapterNotLoaded."""
        count = len(self._handles)
        if not count:
            return
        handles = (lib.llama_adapter_lora_p_ctypes * count)(*self._handles)
        if lib.llama_set_adapters_lora(context, handles, count, (ctypes.c_float * count)(*self._scales)):
            raise AdapterNotLoaded("llama.cpp refused the adapters")

    def close(self) -> None:
        """Once the context is closed, and before the model is: it would free them as well."""
        while self._handles:
            lib.llama_adapter_lora_free(self._handles.pop())


def _loaded(model: LlamaModel, adapter: Adapter) -> Any:
    if not adapter.path.is_file():
        raise AdapterNotLoaded(f"no adapter file at {adapter.path}")
    with complaints() as said:
        handle = lib.llama_adapter_lora_init(model.handle, str(adapter.path).encode())
    if not handle:
        reasons = [line.partition(_REASON)[2].removesuffix(_HINT) for line in said if _REASON in line]
        reason = reasons[0] if reasons else "it cannot be read"
        raise AdapterNotLoaded(f"the adapter {adapter.path.name} does not fit {model.path.name}: {reason}")
    if lib.llama_adapter_get_alora_n_invocation_tokens(handle):
        # It must not be applied before its invocation tokens, and the cells of a prompt are shared whatever follows.
        lib.llama_adapter_lora_free(handle)
        raise AdapterNotLoaded(f"{adapter.path.name} is an activated adapter (aLoRA), which is not supported")
    return handle
