"""What a worker and an engine tell each other on a connection that requests share."""

from __future__ import annotations

import pytest

from inference.remote.protocol import MalformedStream
from inference.remote.transport import (
    ASK,
    EVENTS,
    OF_ALL,
    REFUSED,
    STEP,
    Frame,
    Frames,
    ask,
    frame,
    read_refusal,
    read_step,
    refusal,
    step,
)

SENT = [Frame(ASK, 1, b"00-1-2-01\n{}"), Frame(EVENTS, 4_000_000_000, b"data: [DONE]\n\n"), Frame(STEP, OF_ALL, b"")]
BYTES = ask(1, b"{}", "00-1-2-01") + frame(EVENTS, 4_000_000_000, b"data: [DONE]\n\n") + step(())


@pytest.mark.parametrize("piece", [1, 2, 8, 9, 10, 33, len(BYTES)])
def test_frames_arrive_whole_however_they_are_cut(piece: int) -> None:
    frames = Frames(100)
    told: list[Frame] = []
    for at in range(0, len(BYTES), piece):
        told += frames.feed(BYTES[at : at + piece])
    assert told == SENT


def test_a_frame_has_a_longest_length() -> None:
    assert list(Frames(10).feed(frame(EVENTS, 1, b"x" * 10)))
    with pytest.raises(MalformedStream, match="11 bytes"):
        list(Frames(10).feed(frame(EVENTS, 1, b"x" * 11)))


def test_a_step_brings_tokens_to_many_requests() -> None:
    content = next(Frames(1000).feed(step((7, 1, 300, 8, 3, 1, 2, 3, 9, 0)))).content
    assert list(read_step(content)) == [(7, (300,)), (8, (1, 2, 3)), (9, ())]


@pytest.mark.parametrize("content", [b"abc", step((7,))[9:], step((7, 2, 300))[9:], step((7, 1, 300, 8))[9:]])
def test_a_step_that_is_cut_off_is_none(content: bytes) -> None:
    with pytest.raises(MalformedStream):
        list(read_step(content))


def test_a_refusal_arrives_as_it_was_meant() -> None:
    told = next(Frames(1000).feed(refusal(3, 429, {"error": {"code": "x"}}, 1.5)))
    assert (told.kind, told.number) == (REFUSED, 3)
    assert read_refusal(told.content) == (429, b'{"error":{"code":"x"}}', 1.5)
    assert read_refusal(next(Frames(1000).feed(refusal(3, 503, {}, None))).content).retry_after_s is None


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b'{"status":1}', b'{"status":"a","retry_after_s":1,"body":{}}'),
        b'{"status":503,"retry_after_s":"nan","body":{}}',
        b'{"status":503,"retry_after_s":1e99,"body":{}}',
        b'{"status":503,"retry_after_s":-1,"body":{}}',
        b'{"status":1e999,"retry_after_s":1,"body":{}}',
        b'{"status":200,"retry_after_s":1,"body":{}}',
    ],
)
def test_a_refusal_that_says_nothing_is_none(content: bytes) -> None:
    with pytest.raises(MalformedStream):
        read_refusal(content)
