"""An address that does not exist is answered with the one that is likely meant."""

from __future__ import annotations

import pytest

from worker.not_found import COMPARED_CHARS_MAX, method_not_allowed, unknown_path

KNOWN = ("/", "/healthz", "/v1/chat/completions", "/v1/responses", "/v1/responses/{id}", "/v1/models")


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


@pytest.mark.parametrize("path", ["/v1/assistants", "/v1", "/v1/", "/nowhere", "/v1/resp"])
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
