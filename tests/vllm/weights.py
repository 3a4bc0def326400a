"""The bundled chat model as a folder that vLLM serves: the same weights and the same tokens.

python -m tests.vllm.weights FOLDER
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

from inference.bundled import CHAT_MODEL
from training.bundle import Bundle
from training.vocabulary import END_OF_TEXT, END_OF_TURN

OF_A_LAYER = {
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def name_of(ours: str) -> str:
    """Of a parameter, as Llama's are called there."""
    if not ours.startswith("blocks."):
        return {"emb.weight": "model.embed_tokens.weight", "norm": "model.norm.weight"}[ours]
    _, layer, part = ours.removesuffix(".weight").split(".")
    return f"model.layers.{layer}.{OF_A_LAYER[part]}.weight"


def write(bundle: Bundle, folder: Path) -> None:
    shape, vocabulary = bundle.shape, bundle.vocabulary
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.d_model,
        "intermediate_size": shape.d_ff,
        "num_hidden_layers": shape.n_layer,
        "num_attention_heads": shape.n_head,
        "num_key_value_heads": shape.n_kv,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.ctx,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": vocabulary.id(END_OF_TEXT),
        "eos_token_id": vocabulary.id(END_OF_TURN),
    }
    speech = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TURN,
        "chat_template": bundle.template,
        "model_max_length": shape.ctx,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(speech))
    (folder / "tokenizer.json").write_text(vocabulary.tokenizer().to_str())
    _write_weights(bundle, folder / "model.safetensors")


def _write_weights(bundle: Bundle, path: Path) -> None:
    """Safetensors: the length of a header, the header, and the tensors that it names one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for ours, weight in bundle.weights.items():
        begin, end = end, end + weight.nbytes
        header[name_of(ours)] = {"dtype": "F32", "shape": weight.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for weight in bundle.weights.values():
            file.write(weight.astype("<f4").tobytes())


if __name__ == "__main__":
    write(Bundle.read(CHAT_MODEL), Path(sys.argv[1]))
