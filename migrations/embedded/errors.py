"""The one error of the embedded Postgres."""

from __future__ import annotations


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot run here. The message is one sentence that says what to do."""
