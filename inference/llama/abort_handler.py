"""Handles aborts of llama.cpp: reports the reason, and keeps the process alive for an orderly shutdown.

If a device is lost or runs out of memory in the middle of a step, llama.cpp calls `abort()` or throws a C++ exception
that nothing catches. Both can be intercepted. A thread with a listener reports the reason and then never returns from
its call, so that other threads can respond to pending requests and shut the process down. Every other thread behaves as
before: the process dies.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from inference.llama.library import last_complaint, set_abort_callback

_CXX = ("libstdc++.so.6", "libc++.1.dylib")
REPORT_MAX_S = 5.0  # a listener only sets a flag and wakes others
BLOCKED_S = 0.1  # from the last line before a thread blocks until it does, on a busy machine
_listeners: dict[int, Callable[[str], None]] = {}
_reporting: list[threading.Event] = []  # one per thread that an abort has stopped, set when it has reported
_never = threading.Lock()


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
    reported = threading.Event()
    _reporting.append(reported)
    tell(reason)
    reported.set()
    while True:
        _never.acquire()


def _wait_until_blocked() -> None:
    """Called when the process exits. Python ends a thread that asks for the GIL after that by unwinding its stack; here
    this would pass through native code that allows no exceptions, and the process would abort. A blocked thread does
    not ask."""
    for reported in _reporting:
        reported.wait(REPORT_MAX_S)
    if _reporting:
        time.sleep(BLOCKED_S)


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
    _never.acquire()
    atexit.register(_wait_until_blocked)
    set_abort_callback(_on_abort)
    for name in _CXX:
        with suppress(OSError, AttributeError):
            set_terminate = ctypes.CDLL(name)._ZSt13set_terminatePFvvE
            set_terminate.restype = ctypes.CFUNCTYPE(None)
            set_terminate.argtypes = [ctypes.CFUNCTYPE(None)]
            _before = set_terminate(_on_terminate)
            return
