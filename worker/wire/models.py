"""The model objects of the API: each with its capabilities, in the spellings that programs read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from agents.parser.choose import Format, choose
from inference.template_capabilities import Capabilities
from inference.template_options import have_effort

VISION = "vision"


def abilities(template: str, can: Capabilities, switches: frozenset[str], *, sees: bool) -> list[str]:
    """What a chat model offers, according to its template, and whether it sees."""
    dialect = choose(template, can)
    reasons = dialect.thoughts is not None or dialect.format is Format.HARMONY or have_effort(switches)
    return [
        "chat",
        *(["tools"] if dialect.calls else []),
        *(["reasoning"] if reasons else []),
        *([VISION] if sees else []),
    ]


def chat_card(abilities: Collection[str], context: int, measures: Mapping[str, int]) -> dict[str, Any]:
    """`measures` are those of the file. `max_model_len` is vLLM's name, `meta` llama-server's."""
    sees = VISION in abilities
    return {
        "capabilities": list(abilities),
        "context_length": context,
        "max_model_len": context,
        "architecture": {"input_modalities": ["text", *["image"] * sees], "output_modalities": ["text"]},
        "meta": {"n_ctx": context, **measures},
    }


def embedding_card(dimensions: int) -> dict[str, Any]:
    return {"capabilities": ["embeddings"], "dimensions": dimensions, "meta": {"n_embd": dimensions}}


RERANK_CARD: Mapping[str, Any] = {"capabilities": ["rerank"]}


def model_object(id: str, root: str, created: int, card: Mapping[str, Any]) -> dict[str, Any]:
    """`root` is the model behind the name."""
    return {"id": id, "object": "model", "created": created, "owned_by": "firsttoken", "root": root, **card}
