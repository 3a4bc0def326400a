"""The base model out of its GGUF file, with the template of the product, and an adapter back into a GGUF file.

python -m training.base CHECKPOINT TARGET.gguf
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

BUNDLED = Path(__file__).parent.parent / "inference" / "bundled"
TEMPLATE = BUNDLED / "smol-chat.jinja"
NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
NAMES |= {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
WEIGHT = re.compile(r"layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])")
WEIGHTS, CONFIG = "adapter.safetensors", "adapter.json"  # in the folder of a run


def model(path: Path, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The weights as the file has them, dequantised."""
    loaded = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=dtype)
    loaded.hf_quantizer, loaded.is_quantized = None, False
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    return loaded


def tokenizer(path: Path, template: Path = TEMPLATE) -> Any:
    loaded = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    loaded.chat_template = template.read_text()
    return loaded


def adapter(run: Path, target: Path, kind: str = "Q8_0") -> None:
    """Write the adapter in the folder `run` as llama.cpp reads it. Raises KeyError for any other weight."""
    config = json.loads((run / CONFIG).read_text())
    heads = config["heads"]
    writer = GGUFWriter(str(target), "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("general.license", "apache-2.0")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(config["alpha"]))
    for name, weight in sorted(load_file(str(run / WEIGHTS)).items()):
        found = WEIGHT.search(name)
        if found is None:
            raise KeyError(f"not a weight of a linear layer: {name}")
        layer, part, side = found.groups()
        rows = weight.float().numpy()
        if side == "B" and part in heads:
            rows = rotated(rows, heads[part])
        quantised = GGMLQuantizationType[kind if rows.shape[-1] % 32 == 0 else "F16"]
        data = quants.quantize(np.ascontiguousarray(rows), quantised)
        writer.add_tensor(f"blk.{layer}.{NAMES[part]}.weight.lora_{side.lower()}", data, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def started(path: Path, heads: dict[str, int]) -> dict[str, torch.Tensor]:
    """The weights in the folder of a run or in a GGUF file, by the names that training has for them."""
    if path.is_dir():
        return load_file(path / WEIGHTS)
    weights = {}
    blocks = {theirs: ours for ours, theirs in NAMES.items()}
    for tensor in GGUFReader(path).tensors:
        _, layer, block, _, side = tensor.name.split(".")
        part, side = blocks[block], side[-1].upper()
        rows = quants.dequantize(tensor.data, tensor.tensor_type)
        if side == "B" and part in heads:
            rows = rotated(rows, heads[part], back=True)
        within = "mlp" if block.startswith("ffn") else "self_attn"
        weights[f"layers.{layer}.{within}.{part}.lora_{side}"] = torch.from_numpy(np.ascontiguousarray(rows)).float()
    return weights


def rotated(rows: np.ndarray[Any, Any], heads: int, back: bool = False) -> np.ndarray[Any, Any]:
    """llama.cpp keeps the halves of a rotary pair beside each other."""
    pairs = rows.shape[0] // heads // 2
    return rows.reshape(heads, *((pairs, 2) if back else (2, pairs)), -1).swapaxes(1, 2).reshape(rows.shape)


if __name__ == "__main__":
    adapter(Path(sys.argv[1]), Path(sys.argv[2]))
