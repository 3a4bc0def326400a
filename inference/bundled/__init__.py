"""The models that ship with the package, so that everything runs at once and offline."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
CHAT_MODEL = FOLDER / "demo-chat-q8_0.gguf"
DRAFT_MODEL = FOLDER / "demo-draft-q8_0.gguf"
EMBEDDER = FOLDER / "minilm-l6-v2-q8_0.gguf"
ADAPTER = FOLDER / "smol-chat-lora.gguf"  # of SmolLM2-135M-Instruct
ADAPTER_TEMPLATE = FOLDER / "smol-chat.jinja"
