"""llama.cpp: weights, contexts and the quantiser, guarded so that no call ends the process."""

from inference.llama.context import LlamaContext
from inference.llama.device import Device, backends, build_features, computing, devices
from inference.llama.encoder import EmbeddingContext, RankContext, batches
from inference.llama.library import DecodeFailed, has_gpu
from inference.llama.projector import Projector
from inference.llama.shared_weights import are_loaded, load_weights
from inference.llama.weights import QUANTISATIONS, FileVersion, LlamaModel, Progress, model_name, quantize, version_of

__all__ = [
    "QUANTISATIONS",
    "DecodeFailed",
    "Device",
    "EmbeddingContext",
    "FileVersion",
    "LlamaContext",
    "LlamaModel",
    "Progress",
    "Projector",
    "RankContext",
    "are_loaded",
    "backends",
    "batches",
    "build_features",
    "computing",
    "devices",
    "has_gpu",
    "load_weights",
    "model_name",
    "quantize",
    "version_of",
]
