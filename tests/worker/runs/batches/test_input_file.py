"""Lines of a file that comes in pieces, and what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from worker.runs.batches.batch_worker import BOM, ERRORS_MAX, Checked, lines_of

URL = "/v1/chat/completions"


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"]),
        ([b"o", b"n", b"e\nt", b"wo"], [b"one", b"two"]),
        ([b"one\n", b"\n", b"two"], [b"one", b"", b"two"]),
        ([b"one\nmuch too", b" long\ntwo"], [b"one", None, b"two"]),
        ([b"much too long for", b" a line, and ", b"still going on\ntwo"], [None, b"two"]),
        ([b"one\n", b"much too long"], [b"one", None]),
        ([], []),
    ],
)
async def test_a_line_ends_where_it_ends_wherever_its_file_is_cut(data: list[bytes], lines: list[bytes | None]) -> None:
    assert [line async for line in lines_of(pieces(*data), bytes_max=10)] == lines


def checked(model_error: str | None = None) -> Checked:
    return Checked(URL, 100, lambda model: model_error)


def line(custom_id: str, **body: object) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": body}).encode()


def test_the_model_is_that_of_all_lines_or_of_none() -> None:
    same, different = checked(), checked()
    for number, model in enumerate(("x", "x"), 1):
        same.take(number, line(str(number), model=model))
    for number, model in enumerate(("x", "y"), 1):
        different.take(number, line(str(number), model=model))
    assert (same.model, different.model) == ("x", None)


def test_marks_of_other_systems_are_no_part_of_a_line() -> None:
    read = checked()
    assert read.take(1, BOM + line("a") + b"\r") is not None
    assert read.take(2, b"\r") is None
    assert (read.count, read.errors) == (1, [])


def test_errors_are_told_up_to_a_number() -> None:
    read = checked()
    for number in range(1, ERRORS_MAX + 1):
        assert not read.is_hopeless
        read.take(number, b"{")
    assert read.is_hopeless
    assert [error.line for error in read.errors] == [*range(1, ERRORS_MAX + 1)]


def test_a_body_that_nests_too_deep_is_an_error_of_its_line() -> None:
    deep, read = b"[" * 500 + b"]" * 500, checked()
    read.take(1, line("a").replace(b"{}", b'{"input": %b}' % deep))
    assert [(error.line, error.param) for error in read.errors] == [(1, "body")]


def test_a_body_is_kept_whatever_is_in_it() -> None:
    kept = checked().take(1, line("a", messages="\0", model=5))
    assert kept is not None and json.loads(kept.request) == {"messages": "\0", "model": 5}
