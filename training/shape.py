"""The sizes of a model. The names are those in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    vocab: int = 5120
    d_model: int = 384
    n_layer: int = 6
    n_head: int = 6
    n_kv: int = 2
    head_dim: int = 64
    d_ff: int = 1024
    ctx: int = 2048
    rope_theta: float = 10000.0
    eps: float = 1e-5

    @property
    def sharing(self) -> int:
        """Query heads to each key head."""
        return self.n_head // self.n_kv


CHAT = Shape()
DRAFT = Shape(d_model=128, n_layer=3, n_head=4, n_kv=2, head_dim=32, d_ff=384)
