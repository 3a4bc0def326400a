"""llama.cpp's grammar of one request: which tokens may come next."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.llama.library import grammar_accept, grammar_apply, grammar_clone, grammar_free, lib

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class GrammarMask:
    """Where one text stands in a grammar, and which tokens may follow. For one thread at a time.

    llama.cpp aborts the process when it is told of a token that the grammar forbids, so none is without being checked.
    """

    def __init__(self, handle: int | None) -> None:
        self._handle = handle
        self._checked: int | None = None  # the token that may come next, when one was asked about

    def __del__(self) -> None:
        grammar_free(self._handle)

    def clone(self) -> GrammarMask:
        """The same place, from where another text goes its own way: much cheaper than compiling. Any thread may ask, as
        long as this one stands still."""
        return GrammarMask(grammar_clone(self._handle))

    def allows(self, token: int) -> bool:
        """Whether the token may come next; one that ends the turn may when the text is complete."""
        allowed = bool(self.allowed(np.array([token]))[0])
        self._checked = token if allowed else None
        return allowed

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """The same for many tokens at once."""
        candidates = np.zeros(len(tokens), _CANDIDATE)
        candidates["id"] = tokens
        pointer = candidates.ctypes.data_as(lib.llama_token_data_p)
        grammar_apply(self._handle, ctypes.byref(lib.llama_token_data_array(pointer, len(candidates), -1, False)))
        kept: NDArray[np.bool_] = candidates["logit"] == 0
        return kept

    def accept(self, token: int) -> None:
        """The text goes on with this token. Raises ValueError for one that may not come next."""
        if token != self._checked and not self.allows(token):
            raise ValueError(f"token {token} does not fit the grammar")
        grammar_accept(self._handle, token)
        self._checked = None
