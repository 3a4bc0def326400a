"""The progress of `firsttoken ingest` where there is no terminal."""

from __future__ import annotations

from retrieval.ingest import Progress
from worker.cli.ingest_command import LINE_EVERY_S, ProgressLines


def test_without_a_terminal_a_line_every_few_seconds_tells_the_files_done_of_all() -> None:
    now = [100.0]
    lines = ProgressLines(lambda: now[0])
    told = []
    for done in range(4):
        now[0] = 100 + done * LINE_EVERY_S * 0.75
        told.append(lines.due(Progress(done, 4, done * 10, 40, done * 3, done * 60.0)))
    assert told == [None, None, "2 of 4 files, 02:00 left, 6 passages so far", None]
