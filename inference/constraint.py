"""Holding the answers of requests to grammars: compiled once, then a state of its own for each request."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inference.errors import GrammarFailed

GRAMMARS_KEPT = 64  # compiled: tools and formats of the applications that use this model; some 100 kB each
READY_MAX = 8  # copies of one for requests that are about to start; more are made when they do
# A single token of an ordinary grammar takes 20 microseconds. One that leaves ever more ways open gets slower with each
# token, and everybody waits for the thread that checks it.
CHECK_S_MAX = 0.05


class Mask(Protocol):
    """What `inference.llama.GrammarMask` offers."""

    def clone(self) -> Mask: ...

    def allows(self, token: int) -> bool: ...

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]: ...

    def accept(self, token: int) -> None: ...


class Constraint:
    """What one request may say next. Raises GrammarFailed where the grammar gets too slow to follow."""

    def __init__(self, mask: Mask, sayable: NDArray[np.bool_]) -> None:
        self._mask = mask
        self._sayable = sayable

    def allows(self, token: int) -> bool:
        return bool(self._sayable[token]) and self._mask.allows(token)

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        fitting: NDArray[np.bool_] = self._sayable[tokens] & self._mask.allowed(tokens)
        return fitting

    def accept(self, token: int) -> None:
        started = thread_time()
        self._mask.accept(token)
        if thread_time() - started > CHECK_S_MAX:
            raise GrammarFailed("the schema leaves too many ways open at once: make its alternatives differ sooner")


class Help(Constraint):
    """Follows the text from a token on. Before that anything goes, and again where the grammar gets too slow or leads
    nowhere."""

    def __init__(self, mask: Mask, sayable: NDArray[np.bool_], opening: int) -> None:
        super().__init__(mask, sayable)
        self._opening: int | None = opening
        self._follows = False

    def allows(self, token: int) -> bool:
        return not self._follows or super().allows(token)

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        fitting = super().allowed(tokens)
        if len(tokens) == len(self._sayable) and not fitting.any():
            self._let_go()
            return np.ones(len(tokens), np.bool_)
        return fitting

    def accept(self, token: int) -> None:
        self._follows = self._follows or token == self._opening
        if self._follows:
            try:
                super().accept(token)
            except (GrammarFailed, ValueError):  # too slow, or a beginning that the grammar does not know
                self._let_go()

    def _let_go(self) -> None:
        self._follows, self._opening = False, None


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A grammar at its beginning, and copies of it for the requests that were announced."""

    mask: Mask
    ready: list[Mask] = field(default_factory=list)


class Grammars:
    """Compiled grammars, the latest kept. Thread-safe.

    A copy of a large grammar takes a tenth of a second, so it is made by `prepare`, on a thread where nobody waits.
    Control tokens have a text in llama.cpp's eyes and none in the answer, so no grammar ever lets them through.
    """

    def __init__(self, compile: Callable[[str], Mask], pieces: Sequence[bytes], end_tokens: frozenset[int]) -> None:
        self._compile = compile
        self._sayable = np.array([bool(piece) or token in end_tokens for token, piece in enumerate(pieces)])
        self._kept: OrderedDict[str, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, grammar: str) -> None:
        """Have a copy ready for `start`. Raises InvalidSchema."""
        copy = self._copy(grammar)
        with self._lock:
            compiled = self._kept.get(grammar)
            if compiled is not None and len(compiled.ready) < READY_MAX:
                compiled.ready.append(copy)

    def start(self, grammar: str, opening: int | None = None) -> Constraint:
        """The beginning of a text, or of what the token `opening` begins in one; takes no time where it was prepared.
        Raises InvalidSchema."""
        with self._lock:
            compiled = self._kept.get(grammar)
            ready = compiled.ready.pop() if compiled is not None and compiled.ready else None
        mask = ready or self._copy(grammar)
        return Constraint(mask, self._sayable) if opening is None else Help(mask, self._sayable, opening)

    def _copy(self, grammar: str) -> Mask:
        with self._lock:
            compiled = self._kept.get(grammar)
        if compiled is None:
            compiled = _Compiled(self._compile(grammar))
            with self._lock:
                self._keep(grammar, compiled)
        return compiled.mask.clone()  # outside of the lock: others only read what is copied

    def _keep(self, grammar: str, compiled: _Compiled) -> None:
        self._kept[grammar] = compiled
        self._kept.move_to_end(grammar)
        while len(self._kept) > GRAMMARS_KEPT:
            self._kept.popitem(last=False)
