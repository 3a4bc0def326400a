"""Smaller weights: llama.cpp's quantiser."""

from __future__ import annotations

import ctypes
from pathlib import Path

from inference.errors import InferenceError
from inference.llama.library import lib

# Those in common use, in order of increasing loss; llama.cpp's others are only good with an importance matrix.
QUANTISATIONS = {
    "bf16": lib.LLAMA_FTYPE_MOSTLY_BF16,
    "f16": lib.LLAMA_FTYPE_MOSTLY_F16,
    "q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q6_k": lib.LLAMA_FTYPE_MOSTLY_Q6_K,
    "q5_k_m": lib.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "q4_k_m": lib.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q3_k_m": lib.LLAMA_FTYPE_MOSTLY_Q3_K_M,
    "q2_k": lib.LLAMA_FTYPE_MOSTLY_Q2_K,
}


def quantize(source: Path, target: Path, kind: str, *, threads: int) -> None:
    """Write `target` with weights of another type; a quantised file may be quantised again.

    Blocks for minutes with a large model and aborts the process on some broken files. Raises InferenceError.
    """
    parameters = lib.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype, parameters.allow_requantize = threads, QUANTISATIONS[kind], True
    code = lib.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    if code:
        raise InferenceError(f"llama.cpp could not quantise {source} to {kind}")
