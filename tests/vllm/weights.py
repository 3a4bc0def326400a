"""The bundled chat model as a folder that vLLM serves: the same weights and the same tokens.

python -m tests.vllm.weights FOLDER          (in vLLM's environment, which has transformers and gguf)
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from inference.bundled import CHAT_MODEL


def write(source: Path, folder: Path) -> None:
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    model.hf_quantizer = None  # the weights are plain numbers by now
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


if __name__ == "__main__":
    write(CHAT_MODEL, Path(sys.argv[1]))
