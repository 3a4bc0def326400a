"""The fingerprint of a context: only where it is the same may one context take a state that another one saved."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from inference.llama.device import build_features
from inference.llama.library import lib

# Weights are gigabytes: their size, their time and so many pieces of them are looked at.
SAMPLES, SAMPLE_BYTES = 64, 16_384


def fingerprint(model: Path, parameters: Any) -> bytes:
    """32 bytes for this model, this layout of the cache (`parameters` of the context) and this build, whose kernels
    decide the last bits."""
    streams = 1 if parameters.kv_unified else parameters.n_seq_max
    layout = (streams, parameters.flash_attn_type, parameters.type_k, parameters.type_v)
    library = Path(lib._lib._name).stat()
    build = (library.st_size, library.st_mtime_ns, sorted(build_features().items()))
    return sha256(_weights(model) + repr((layout, build)).encode()).digest()


def _weights(model: Path) -> bytes:
    facts = model.stat()
    digest = sha256(repr((facts.st_size, facts.st_mtime_ns)).encode())
    with model.open("rb") as file:
        for sample in range(SAMPLES):
            file.seek(sample * facts.st_size // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
