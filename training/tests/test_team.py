"""Processes that train together end together."""

from __future__ import annotations

import fcntl
import multiprocessing
import threading
from dataclasses import dataclass
from pathlib import Path

from training.team import Team, run


@dataclass(frozen=True, slots=True)
class Lingering:
    """Work without end. Each member holds a lock on a file of its own, which is free again when the member is gone."""

    folder: Path

    def __call__(self, team: Team) -> None:
        with (self.folder / f"{team.rank}.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            team.gather(None)
            (self.folder / f"{team.rank}.ready").touch()
            threading.Event().wait()


def test_a_team_whose_leader_is_killed_ends(tmp_path: Path) -> None:
    leader = multiprocessing.get_context("spawn").Process(target=run, args=(2, Lingering(tmp_path)))
    leader.start()
    while not (tmp_path / "0.ready").exists() and leader.is_alive():
        leader.join(0.05)
    leader.kill()
    leader.join()
    for rank in range(2):
        with (tmp_path / f"{rank}.lock").open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
