"""What is shown of a training while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from training.loss import Loss
from training.schedule import Clock

SMOOTHING = 0.95  # of the loss that is shown


class Pace:
    """The losses, smoothed; since the last report, tokens a second and the share of time without a batch."""

    def __init__(self, say: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self.say, self._now = say, now
        self._written = self._looking = math.nan
        self._tokens, self._waited_s, self._since = 0, 0.0, now()

    def add(self, loss: Loss, tokens: int) -> None:
        self._written = _smoothed(self._written, loss.written.item())
        self._looking = _smoothed(self._looking, loss.looking.item())
        self._tokens += tokens

    def report(self, steps: int, seen: int, clock: Clock, waited_s: float) -> None:
        """`waited_s` for batches in all, `seen` tokens in all."""
        elapsed_s = self._now() - self._since
        self.say(
            f"step {steps}: loss {self._written:.3f}, looking {self._looking:.2f}, "
            f"{self._tokens / elapsed_s:.0f} tokens/s "
            f"({(waited_s - self._waited_s) / elapsed_s:.0%} of the time waiting for conversations), "
            f"{seen / 1e6:.2f} M tokens, {clock.spent_s / 60:.1f} of {clock.minutes:g} min"
        )
        self._tokens, self._waited_s, self._since = 0, waited_s, self._now()


def _smoothed(before: float, now: float) -> float:
    return now if math.isnan(before) else SMOOTHING * before + (1 - SMOOTHING) * now


def silent(_text: str) -> None: ...
