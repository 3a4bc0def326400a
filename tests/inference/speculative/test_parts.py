"""A step falls into the parts that llama.cpp makes of it."""

from __future__ import annotations

import pytest

from inference.speculative.parts import parts


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], []),
        ([(3, 1)], [1]),
        ([(0, 1), (1, 1), (2, 1)], [3]),
        ([(0, 1), (2, 1), (3, 1)], [1, 2]),
        ([(0, 4), (1, 4)], [8]),
        ([(0, 1), (1, 4), (2, 1)], [3, 3]),
        ([(0, 4), (1, 1), (2, 4)], [3, 3, 3]),
        ([(0, 2), (1, 4), (2, 4)], [6, 4]),
    ],
)
def test_rows_of_neighbours_are_together_as_far_as_all_have_some(
    rows: list[tuple[int, int]], expected: list[int]
) -> None:
    assert list(parts(rows)) == expected
