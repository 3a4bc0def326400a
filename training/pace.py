"""What is shown of a training while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from training.schedule import Clock

SMOOTHING = 0.95  # of the loss that is shown


class Pace:
    """The loss, smoothed; since the last report, tokens a second and the share of time that went by without a batch."""

    def __init__(self, say: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self.say, self._now = say, now
        self._loss: float | None = None
        self._tokens, self._waited_s, self._since = 0, 0.0, now()

    def add(self, loss: float, tokens: int) -> None:
        self._loss = loss if self._loss is None else SMOOTHING * self._loss + (1 - SMOOTHING) * loss
        self._tokens += tokens

    def report(self, steps: int, seen: int, clock: Clock, waited_s: float) -> None:
        """`waited_s` for batches in all, `seen` tokens in all."""
        elapsed_s = self._now() - self._since
        self.say(
            f"step {steps}: loss {self._loss:.3f}, {self._tokens / elapsed_s:.0f} tokens/s "
            f"({(waited_s - self._waited_s) / elapsed_s:.0%} of the time waiting for conversations), "
            f"{seen / 1e6:.2f} M tokens, {clock.spent_s / 60:.1f} of {clock.minutes:g} min"
        )
        self._tokens, self._waited_s, self._since = 0, waited_s, self._now()


def silent(_text: str) -> None: ...
