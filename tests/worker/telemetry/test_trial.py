"""None"""

from __future__ import annotations

import pytest

from worker.telemetry.trial import SHARE_MIN, Proposal


@pytest.mark.parametrize("share", [1e-300, 1e-46, SHARE_MIN / 2, 1 - SHARE_MIN / 2, 0.99999999999])
def test_a_share_that_leaves_nothing_on_one_side_is_named(share: float) -> None:
    problem = Proposal("trial", "", "new", share).problem({"new"})
    assert problem is not None and problem[0] == "share"


@pytest.mark.parametrize("share", [SHARE_MIN, 0.5, 1 - SHARE_MIN])
def test_a_share_that_leaves_something_is_taken(share: float) -> None:
    assert Proposal("trial", "", "new", share).problem({"new"}) is None
