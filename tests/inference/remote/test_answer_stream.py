"""What engines answer: our own, and vLLM as it documents its stream."""

from __future__ import annotations

import pytest

from inference.generation import Finish, Sampling, Steps, TokenLogprob
from inference.prompt import Miss
from inference.remote.protocol import (
    DONE,
    EVENT_BYTES_MAX,
    Events,
    MalformedStream,
    Placement,
    StreamUpdate,
    read,
    spell_end,
    spell_error,
    spell_first,
    spell_likely,
    spell_nothing,
    spell_tokens,
)
from tests.scripted import ScriptedGeneration

PIECES = [b"zero", b" one", b" two", b"\xe2\x82"]
# A stream of vLLM with `stream_options.include_usage` and `--enable-prompt-tokens-details`.
VLLM = b"""\
data: {"request_id":"tokens-7","choices":[{"index":0,"logprobs":null,"finish_reason":null,"token_ids":[1]}]}

data: {"request_id":"tokens-7","choices":[{"index":0,"logprobs":null,"finish_reason":"length","token_ids":[2,0]}]}

data: {"request_id":"tokens-7","choices":[],"usage":{"prompt_tokens":301,"total_tokens":304,\
"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":256}}}

data: [DONE]

"""
LIKELY = b"""{"request_id":"r","choices":[{"index":0,"logprobs":{"content":[{"token":"token_id:1","logprob":-0.5,\
"bytes":null,"top_logprobs":[{"token":"token_id:1","logprob":-0.5,"bytes":null},\
{"token":"token_id:2","logprob":-1.5,"bytes":null}]}]},"finish_reason":null,"token_ids":[1]}]}"""
# Of vLLM 0.32, which puts the token that was drawn first.
DRAWN = b"""{"request_id":"r","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":null,\
"stop_reason":null,"token_ids":[0],"logprobs":{"content":[{"token_id":0,"logprob":-7.5,"rank":47,"top_logprobs":[\
{"token_id":0,"logprob":-7.5,"rank":47},{"token_id":1,"logprob":-0.5,"rank":1}]}]}}]}"""
FAILED = b'{"error":{"message":"the engine core died","type":"InternalServerError","param":null,"code":500}}'


def all_of(stream: bytes) -> list[StreamUpdate]:
    return [read(data, PIECES) for data in Events().feed(stream) if data != DONE]


def test_a_recorded_stream_tells_its_tokens_its_end_and_what_was_cached() -> None:
    first, second, usage = all_of(VLLM)
    assert (first.ids, first.finish) == ([1], None)
    assert (second.ids, second.finish) == ([2, 0], Finish.LENGTH)
    assert (usage.ids, usage.finish, usage.cached) == ((), None, 256)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_stream_may_be_cut_anywhere(size: int) -> None:
    events, found = Events(), []
    for start in range(0, len(VLLM), size):
        found += events.feed(VLLM[start : start + size])
    assert found == Events().feed(VLLM) and found[-1] == DONE


def test_comments_other_fields_and_other_line_ends_are_understood() -> None:
    stream = b': ping\r\n\r\nevent: message\r\nid: 7\r\ndata: {"choices":[{"index":0,"token_ids":[2]}]}\r\n\r\n'
    ping, data = Events().feed(stream)
    assert (ping, read(data, PIECES).ids) == (b"", [2])


def test_token_ids_stand_for_the_text_of_likely_tokens() -> None:
    (told,) = read(LIKELY, PIECES).logprobs
    assert told == TokenLogprob(b" one", -0.5, ((b" one", -0.5), (b" two", -1.5)))
    (told,) = read(DRAWN, PIECES).logprobs
    assert told == TokenLogprob(b"zero", -7.5, ((b" one", -0.5), (b"zero", -7.5)))


def test_errors_and_answers_that_were_given_up_are_told() -> None:
    assert read(FAILED, PIECES).error == ("the engine core died", 500, "InternalServerError")
    given_up = read(b'{"choices":[{"index":0,"token_ids":[],"finish_reason":"abort"}]}', PIECES)
    assert (given_up.finish, given_up.aborted) == (None, True)


@pytest.mark.parametrize(
    "data",
    [
        b"no json",
        b"[]",
        b'{"choices":7}',
        b'{"choices":[{"token_ids":[4]}]}',
        b'{"choices":[{"token_ids":[-1]}]}',
        b'{"choices":[{"token_ids":["1"]}]}',
        b'{"choices":[{"token_ids":[true]}]}',
        b'{"choices":[{"token_ids":[1],"logprobs":{"content":[{"token":"token_id:9","logprob":0}]}}]}',
        b'{"choices":[{"token_ids":[1],"logprobs":{"content":[{"token_id":9,"logprob":0}]}}]}',
        b'{"choices":[{"token_ids":[1],"logprobs":{"content":[{"token_id":-1,"logprob":0}]}}]}',
        b'{"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":-5}}}',
        b'{"choices":[],"firsttoken":{"queue_ms":"soon","prefill_ms":1}}',
    ],
)
def test_what_no_engine_says_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedStream):
        read(data, PIECES)


def test_an_event_without_end_is_not_kept() -> None:
    events = Events()
    with pytest.raises(MalformedStream):
        for _ in range(3):
            events.feed(b"x" * (EVENT_BYTES_MAX // 2))


def test_what_our_engine_spells_is_read_as_it_was_meant() -> None:
    generation = ScriptedGeneration("abc", 10, Sampling(), 1)
    generation.facts.miss, generation.facts.cached_tokens = Miss(4, 2, (1, 2), (0,)), 4
    generation.facts.stamps.submitted_ns, generation.facts.stamps.admitted_ns, generation.facts.stamps.prefilled_ns = (
        0,
        2_000_000,
        5_000_000,
    )
    likely = TokenLogprob(b"\xe2\x82", -1.0, ((b"zero", -0.5),))
    generation.finish, generation.facts.acceptance.drafted, generation.facts.acceptance.accepted = Finish.DEADLINE, 6, 5
    generation.facts.prefill_steps, generation.facts.decode_steps = Steps(2, 3), Steps(4, 9)
    first, plain, drawn, end, usage = all_of(
        spell_first("r", [1], (), generation)
        + spell_tokens([2, 0])
        + spell_likely([3], [likely])
        + spell_end(generation)
    )
    assert (first.ids, first.cached, first.placement) == (
        [1],
        4,
        Placement(2.0, 3.0, generation.facts.miss, prefill_steps=Steps(2, 3)),
    )
    assert (plain.ids, drawn.ids, drawn.logprobs) == ([2, 0], [3], [likely])
    assert (end.finish, end.aborted, end.counts, usage.cached) == (Finish.DEADLINE, False, (6, 5), 4)
    assert end.decode_steps == Steps(4, 9)
    assert all_of(spell_error("no", 503, "server_error"))[0].error == ("no", 503, "server_error")
    assert all_of(spell_nothing())[0].finish is Finish.STOP
