"""The one line of Postgres's output that a person needs."""

from __future__ import annotations

import pytest

from migrations.embedded.errors import reason_in

FULL_DISK = """\
performing post-bootstrap initialization ... 2026-11-21 03:16:34.028 UTC [14405] FATAL:  could not extend file
2026-11-21 03:16:34.030 UTC [14405] PANIC:  cannot abort transaction 1, it was already committed
child process was terminated by signal 6: Aborted
"""
IMPATIENT_CLIENT = """\
LOG:  database system was interrupted
FATAL:  the database system is starting up
PANIC:  could not locate a valid checkpoint record
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (FULL_DISK, "could not extend file"),
        (IMPATIENT_CLIENT, "could not locate a valid checkpoint record"),
        ("initdb: error: directory exists\ninitdb: hint: remove it\n", "directory exists"),
        ("Segmentation fault\n", "Segmentation fault"),
        ("", ""),
    ],
)
def test_the_first_fatal_line_is_the_reason(output: str, reason: str) -> None:
    assert reason_in(output) == reason
