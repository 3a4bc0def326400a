"""What the database raises when it is away is answered with 503 and a time to try again; a mistake of ours is not."""

from __future__ import annotations

import asyncpg
import pytest

from inference.errors import InferenceError
from migrations.pool import CommitUnknown
from worker.error_mapping import to_api_error


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.AdminShutdownError,
        asyncpg.CannotConnectNowError,
        asyncpg.ConnectionDoesNotExistError,
        asyncpg.CrashShutdownError,
        asyncpg.DiskFullError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        asyncpg.ReadOnlySQLTransactionError,
        asyncpg.TooManyConnectionsError,
        CommitUnknown,
        ConnectionRefusedError,
        TimeoutError,
    ],
)
def test_a_database_that_is_away_is_told_as_such(error: type[Exception]) -> None:
    answer = to_api_error(error("x"))
    assert answer is not None
    assert (answer.status, answer.type) == (503, "server_error")
    assert answer.retry_after_s is not None


@pytest.mark.parametrize("error", [asyncpg.UniqueViolationError, asyncpg.SyntaxOrAccessError, AssertionError])
def test_what_will_not_pass_is_not_worth_another_try(error: type[Exception]) -> None:
    assert to_api_error(error("x")) is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("no engine is reachable: try again in a moment", "No engine is reachable: try again in a moment."),
        ("There is no vector store 'a'.", "There is no vector store 'a'."),
        ("properties.a: this is no type", "properties.a: this is no type."),
        ("demo-chat takes no tools", "demo-chat takes no tools."),
    ],
)
def test_what_a_client_is_told_is_a_sentence(said: str, told: str) -> None:
    answer = to_api_error(InferenceError(said))
    assert answer is not None and answer.message == told
