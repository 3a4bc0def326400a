"""The one error of the embedded Postgres, and the reason that Postgres gives for it."""

from __future__ import annotations

import re

# "The database system is starting up" is what early clients are told, not a reason.
FATAL = re.compile(r"\b(?:FATAL|PANIC|error):(?!\s*the database system is )\s*(.*)")


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot run here. The message is one sentence that says what to do."""


def reason_in(output: str) -> str:
    """What Postgres first called fatal in its output (more may follow from it), or else its last line."""
    first = FATAL.search(output)
    return first[1] if first else (output.strip().splitlines() or ["no message"])[-1]
