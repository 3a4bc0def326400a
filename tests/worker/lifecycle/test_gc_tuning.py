"""What the garbage collector looks at while a worker serves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from worker.lifecycle.process import YOUNG_MAX, freeze


@pytest.fixture
def undone() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("undone")
def test_what_was_loaded_before_is_not_looked_at_again() -> None:
    loaded: list[dict[str, int]] = [{} for _ in range(1000)]
    freeze()
    later: list[dict[str, int]] = [{}]
    looked_at = {id(each) for each in gc.get_objects()}
    assert not looked_at & {id(each) for each in loaded}
    assert id(later) in looked_at
    assert gc.get_threshold()[0] == YOUNG_MAX
