"""The cache layouts and kinds of attention that tests of many seconds ask for."""

from __future__ import annotations

import pytest

from inference.attention import ALL, Attention


def _marks(mode: Attention) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if mode.unified != mode.flash else []


# Each layout and each kind of attention once; `make test-long` has the other two pairs.
COVERING = [pytest.param(mode, marks=_marks(mode), id=str(mode)) for mode in ALL]
