"""Handles aborts of llama.cpp: reports the reason, and keeps the process alive for an orderly shutdown.

If a device is lost or runs out of memory in the middle of a step, llama.cpp calls `abort()` or throws a C++ exception
that nothing catches. Both can be intercepted. A thread with a listener reports the reason and then never returns from
its call, so that other threads can respond to pending requests and shut the process down. Every other thread behaves as
before: the process dies.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from inference.llama.library import last_complaint, set_abort_callback

_CXX = ("libstdc++.so.6", "libc++.1.dylib")
_listeners: dict[int, Callable[[str], None]] = {}


@contextmanager
def aborts_reported_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Within the block, an abort in a call of this thread calls `tell` with the reason, on this thread, in that
    call."""
    _install()
    _listeners[threading.get_ident()] = tell
    try:
        yield
    finally:
        del _listeners[threading.get_ident()]


def _hand_over(reason: str) -> None:
    """Does not return if the thread has a listener."""
    tell = _listeners.get(threading.get_ident())
    if tell is None:
        print(reason, file=sys.stderr, flush=True)
        return
    tell(reason)
    while True:
        threading.Event().wait()


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
def _on_abort(message: bytes) -> None:
    text = message.decode("utf-8", "replace")
    _hand_over(text.rpartition("/")[2])  # strips the source path of the machine that compiled it


@ctypes.CFUNCTYPE(None)  # type: ignore[untyped-decorator]
def _on_terminate() -> None:
    _hand_over(last_complaint() or "an exception of the device")
    if _before:
        _before()


_before: Callable[[], None] | None = None
_installed = False


def _install() -> None:
    global _before, _installed
    if _installed:
        return
    _installed = True
    set_abort_callback(_on_abort)
    for name in _CXX:
        with suppress(OSError, AttributeError):
            set_terminate = ctypes.CDLL(name)._ZSt13set_terminatePFvvE
            set_terminate.restype = ctypes.CFUNCTYPE(None)
            set_terminate.argtypes = [ctypes.CFUNCTYPE(None)]
            _before = set_terminate(_on_terminate)
            return
