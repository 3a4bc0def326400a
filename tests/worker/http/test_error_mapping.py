"""What the database raises when it is away is answered with 503 and a time to try again; a mistake of ours is not."""

from __future__ import annotations

import asyncpg
import pytest

from inference.errors import InferenceError
from migrations.pool import CommitUnknown
from worker.http.error_mapping import COMPARED_CHARS_MAX, method_not_allowed, to_api_error, unknown_path

KNOWN = (
    *("/", "/healthz", "/ops", "/v1/chat/completions", "/v1/responses", "/v1/responses/{id}", "/v1/models"),
    "/v1/conversations",
)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/responses/resp_1/cancel", "/v1/responses/resp_1/cancel"),
        ("/v1/v1/models", "/v1/models"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/health", "/healthz"),
    ],
)
def test_the_address_that_is_likely_meant_is_named(path: str, meant: str) -> None:
    error = unknown_path("POST", path, KNOWN)
    assert (error.status, error.type) == (404, "not_found_error")
    assert error.message == f"The address POST {path} does not exist. Did you mean {meant}?"


@pytest.mark.parametrize("path", ["/v1/assistants", "/v1/moderations", "/props", "/v1", "/v1/", "/nowhere", "/v1/resp"])
def test_where_nothing_is_alike_the_list_of_addresses_is_named(path: str) -> None:
    assert "/openapi.json" in unknown_path("GET", path, KNOWN).message


def test_a_long_address_is_compared_with_none_and_told_in_part() -> None:
    message = unknown_path("GET", "/chat/completions" + "a" * 8000, KNOWN).message
    assert "/openapi.json" in message and len(message) < 400
    assert "Did you mean" not in unknown_path("GET", "/chat/" + "a" * COMPARED_CHARS_MAX, KNOWN).message


def test_the_methods_that_an_address_takes_are_named() -> None:
    error = method_not_allowed("PUT", {"HEAD", "GET", "POST", "OPTIONS"})
    assert error.message == "This address takes GET or POST, not PUT."
    assert (error.status, error.headers["Allow"]) == (405, "GET, HEAD, OPTIONS, POST")


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


def test_a_full_disk_is_told_to_those_who_wait_for_it() -> None:
    answer = to_api_error(asyncpg.DiskFullError("could not extend file"))
    assert answer is not None and answer.message.startswith("The disk of the database is full: ")


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
