"""Signals before there is an event loop to handle them: nothing has begun, so the process ends at once and silently."""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130


def handle_early() -> None:
    """Python would end in a traceback of its imports. And the first process of a container has no defaults: what stops
    it would be lost. What asks for a renewal is too early, and must not end the process that it is to renew."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _end)


def leave_to_loop() -> None:
    """Call this right before the event loop begins, which handles Ctrl-C only where Python does."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
