"""The progress of loading a model, for the terminal, the pages and /readyz."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Never

from tqdm import tqdm

BAR_AFTER_S = 1.0  # a bar that vanishes before it can be read only distracts


class LoadProgress:
    """`share` goes from 0 to 1. Written by the loading thread, read by the event loop."""

    def __init__(self) -> None:
        self.share = 0.0
        self._bar: tqdm[Never] | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show a bar in the terminal, if there is one."""
        with tqdm(total=100, unit="%", desc="loading the model", delay=BAR_AFTER_S, leave=False, disable=None) as bar:
            self._bar = bar
            yield

    def tell(self, share: float) -> None:
        self.share = share
        if self._bar is not None:
            self._bar.update(round(100 * share) - self._bar.n)
