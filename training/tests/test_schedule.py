from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.loss import Loss
from training.pace import Pace
from training.schedule import RATE_MIN, WARM_UP_STEPS, Clock, rate


def test_the_rate_goes_up_stays_and_goes_down() -> None:
    assert [rate(step, 0.0) for step in (0, 9, WARM_UP_STEPS, 5000)] == [0.05, 0.5, 1.0, 1.0]
    assert [rate(5000, done) for done in (0.4, 0.7, 0.999)] == pytest.approx([1.0, 0.5, RATE_MIN])


def test_time_that_was_spent_before_counts(tmp_path: Path) -> None:
    now = 100.0
    clock = Clock(2, tmp_path / "it.minutes", spent_s=30.0, now=lambda: now)
    assert clock.done == 0.25
    now = 160.0
    assert (clock.spent_s, clock.done) == (90.0, 0.75)


def test_the_minutes_can_be_changed_meanwhile(tmp_path: Path) -> None:
    changed = tmp_path / "it.minutes"
    clock = Clock(2, changed, spent_s=30.0, now=lambda: 0.0)
    for text, minutes in (("5\n", 5.0), ("", 2.0), ("0", 0.0)):
        changed.write_text(text)
        assert clock.minutes == minutes
    assert clock.done == 1.0


def test_the_pace_is_that_since_the_last_report(tmp_path: Path) -> None:
    now, said = 0.0, list[str]()
    pace, clock = Pace(said.append, now=lambda: now), Clock(2, tmp_path / "it.minutes", now=lambda: now)
    for loss, waited_s in ((4.0, 5.0), (2.0, 5.0)):
        pace.add(Loss(torch.tensor(loss), torch.tensor(loss / 2)), tokens=1000)
        now += 20.0
        pace.report(1, 1_500_000, clock, waited_s)
    assert said == [
        "step 1: loss 4.000, looking 2.00, 50 tokens/s (25% of the time waiting for conversations), 1.50 M tokens, "
        "0.3 of 2 min",
        "step 1: loss 3.900, looking 1.95, 50 tokens/s (0% of the time waiting for conversations), 1.50 M tokens, "
        "0.7 of 2 min",
    ]
