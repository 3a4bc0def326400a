"""A rough circuit for copying (an "induction head"), planted before training, which refines it.

A small model finds this circuit by chance only after much of a short training; planted, it copies names and values from
its prompt at once. Three parts of the residual stream are reserved:

    0          a constant: it adds the same to every logit, so it does no harm with tied embeddings
    1 ... p1   the token
    p1 ... p2  the token before it, written by layer 0
    p2 ...     the one before that, likewise

Layer 0 finds the two places from the constant: a key that points the same way everywhere, turned by RoPE, and a query
turned by one or two places more. Layer 1 attends to places whose previous tokens equal the current ones, in dimensions
that RoPE hardly turns, and writes the token found there.

In-context copying as two composed heads: Olsson et al. 2022, "In-context learning and induction heads".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from training.shape import Shape

# Found by trial: strong enough to be there after the first norms, weak enough for training to change it.
RESERVED_START = 0.05  # of the embeddings' usual size, in the reserved parts
ATTENTION = 7.0  # logit of the place one or two back
WRITTEN = 0.3  # scale of what layer 0 writes
COPIED = 0.8  # and of what layer 1 does
TOKEN_SCALE = 3.2  # of queries that read the token
RESERVED_SCALE = 1.4 * 1.4  # of keys and queries that read the reserved parts, where values are larger
FAST, SLOW = 0.1, 0.003  # radians a token: dimensions that tell neighbours apart, and those that hardly turn


class Layer(Protocol):
    wq: nn.Linear
    wk: nn.Linear
    wv: nn.Linear
    wo: nn.Linear


@torch.no_grad()
def plant(shape: Shape, embeddings: Tensor, first: Layer, second: Layer) -> None:
    """Raises ValueError where the shape has no room for it."""
    if shape.n_kv < 2 or shape.sharing < 2 or shape.d_model <= 3 * shape.head_dim:
        raise ValueError("copying needs two key heads, two queries to each, and a width of more than three heads")
    parts = _Parts(shape)
    embeddings[:, parts.one_back :] *= RESERVED_START
    embeddings[:, 0] = 1.0
    constant = embeddings.pow(2).mean(-1).rsqrt().mean().item()  # what the first norm makes of it
    tokens = parts.directions(shape.head_dim)
    _look_back(parts, first, tokens, ATTENTION / constant)
    _match_and_copy(parts, second, tokens)


@dataclass(frozen=True, slots=True)
class _Parts:
    shape: Shape

    @property
    def one_back(self) -> int:
        return self.shape.d_model - 2 * self.shape.head_dim

    @property
    def two_back(self) -> int:
        return self.shape.d_model - self.shape.head_dim

    @property
    def token(self) -> slice:
        return slice(1, self.one_back)

    @property
    def speeds(self) -> Tensor:
        """Radians that RoPE turns each pair of dimensions by, a token."""
        head = self.shape.head_dim
        return torch.pow(self.shape.rope_theta, -2 * torch.arange(head // 2).float() / head)

    def head(self, number: int) -> slice:
        return slice(number * self.shape.head_dim, (number + 1) * self.shape.head_dim)

    def directions(self, count: int) -> Tensor:
        """[count, token part]: random and at right angles."""
        room = self.one_back - 1
        directions: Tensor = torch.linalg.qr(torch.randn(room, room))[0]
        return directions[:count]


def _look_back(parts: _Parts, layer: Layer, tokens: Tensor, strength: float) -> None:
    """Heads 0 and 1 attend one and two places back and write the token there into the reserved parts."""
    half = parts.shape.head_dim // 2
    fast = (parts.speeds > FAST).float() * strength
    keys = layer.wk.weight[parts.head(0)].zero_()
    keys[:half, 0] = fast
    for head, (back, written) in enumerate(((1, parts.one_back), (2, parts.two_back))):
        queries = layer.wq.weight[parts.head(head)].zero_()
        queries[:half, 0] = fast * torch.cos(parts.speeds * back)
        queries[half:, 0] = -fast * torch.sin(parts.speeds * back)
        target = slice(written, written + parts.shape.head_dim)
        layer.wo.weight[target, parts.head(head)] = WRITTEN * torch.eye(parts.shape.head_dim)
    layer.wv.weight[parts.head(0)].zero_()[:, parts.token] = tokens


def _match_and_copy(parts: _Parts, layer: Layer, tokens: Tensor) -> None:
    """Key head 0 matches one token; every second dimension of key head 1 matches the token before it as well."""
    size, half = parts.shape.head_dim, parts.shape.head_dim // 2
    slow = torch.nonzero(parts.speeds < SLOW).flatten().tolist()
    still = [*slow, *(dimension + half for dimension in slow)]
    copied = parts.directions(min(2 * size, parts.one_back - 1))
    for key_head in range(2):
        heads = [parts.head(key_head * parts.shape.sharing + query) for query in range(2)]
        keys = layer.wk.weight[parts.head(key_head)].zero_()
        queries = [layer.wq.weight[head].zero_() for head in heads]
        for i, dimension in enumerate(still):
            source = (i + key_head * len(still)) % size
            if key_head == 0 or i % 2 == 0:
                keys[dimension, parts.one_back + source] = RESERVED_SCALE
                for query in queries:
                    query[dimension, parts.token] = TOKEN_SCALE * tokens[source]
            else:
                keys[dimension, parts.two_back + source] = RESERVED_SCALE
                for query in queries:
                    query[dimension, parts.one_back + source] = RESERVED_SCALE
        part = copied[parts.head(key_head)]
        layer.wv.weight[parts.head(key_head)].zero_()[: len(part), parts.token] = part
        for head in heads:
            layer.wo.weight[parts.token, head.start : head.start + len(part)] = COPIED * part.T
