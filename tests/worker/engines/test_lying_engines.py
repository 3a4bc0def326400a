"""Engines that say what none should: the next one is asked where nothing was told, and no lie lasts or is believed."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from inference.errors import InferenceError
from inference.generation import Finish, Sampling
from inference.remote import remote_generation, remote_model
from inference.remote.protocol import COUNT_MAX, EVENT_BYTES_MAX, TOKEN_ID
from inference.remote.remote_model import RemoteModel
from tests.engines import reaching
from worker.engines.exchange import REFUSAL_BYTES_MAX

PROMPT = list(range(300, 400))
ASKED = Sampling(temperature=0, max_tokens=10)
HONEST = list(range(350, 360))
MODELS = json.dumps({"data": [{"id": "demo", "max_model_len": 512}]}).encode()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END_S = 60.0  # of the slowest of these, on a busy machine


def event(told: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(told).encode()


def tokens(ids: Sequence[object], finish: str | None = None, **more: object) -> bytes:
    return event({"choices": [{"index": 0, "token_ids": ids, "finish_reason": finish, **more}]})


def likely(**told: object) -> bytes:
    return tokens([350], logprobs={"content": [{"token": f"{TOKEN_ID}350", "logprob": -1.0, **told}]})


def ours(**told: object) -> bytes:
    own = {"queue_ms": 1.0, "prefill_ms": 1.0, "steps": [1, 1], **told}
    return event({"choices": [{"index": 0, "token_ids": [350]}], "firsttoken": own})


DONE = b"data: [DONE]\n\n"
WHOLE = tokens(HONEST, "length") + DONE
# Lies before anything was told: an honest engine answers in their place.
AT_ONCE = {
    "nonsense": OK + b"data: {nonsense\n\n",
    "a list": OK + event([1]),
    "deep": OK + b"data: " + b"[" * 100_000 + b"\n\n",
    "not utf-8": OK + b'data: {"choices":"\xff\xfe"}\n\n',
    "an endless line": OK + b"data: " + b"x" * (EVENT_BYTES_MAX + 2**17),
    "endless comments": OK + b": no news\n\n" * (EVENT_BYTES_MAX // 8),
    "another protocol": b"SSH-2.0-server\r\n\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2**17,
    "a page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 26\r\n\r\n<html>\n\n<p>Hi</p>\n\n</html>",
    "an empty body": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "another place": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "another kind of server": b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n",
    "a bomb": OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + gzip.compress(b"\0" * 2**26),
    "an endless refusal": b"HTTP/1.1 500 No\r\n\r\n" + b"x" * (REFUSAL_BYTES_MAX + 2**17),
    "a chunk of 2**40 bytes": CHUNKED + b"10000000000\r\n" + b"x" * (EVENT_BYTES_MAX + 2**17),
    "a chunk of no number": CHUNKED + b"many\r\n",
    "no token": OK + tokens([10**6]),
    "a token below zero": OK + tokens([-1]),
    "a true token": OK + tokens([True]),
    "tokens without end": OK + tokens("350"),
    "as many zeros": OK + likely(bytes=2**40),
    "no bytes": OK + likely(bytes=[300]),
    "no likelihood": OK + likely(logprob="nan"),
    "a likelihood without bounds": OK + likely(logprob=-1).replace(b"-1}", b"-1e999}"),
    "a negative count": OK + event({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": -1}}}),
    "a count for no column": OK + ours(drafted=COUNT_MAX + 1, accepted=0),
    "a wait without bounds": OK + ours(queue_ms=1e300),
    "a wait below zero": OK + ours(queue_ms=-1e300),
    "a wait that is no number": OK + ours(prefill_ms="nan"),
    "a forecast without bounds": OK + ours(expected_s=[1e300, 0]),
    "time of the engine for no column": OK + ours(engine_ns=10**18, speculation_ns=0),
    "a miss of no tokens": OK + ours(miss={"cached": 1, "seen": 1, "wanted": [10**6], "held": [1]}),
    "an end of a crash": OK + event({"error": {"message": "x" * 10**5, "code": 500}}),
    "an error of a proxy": OK + event({"error": {"message": "who are you?", "code": 401}}),
    "an end without tokens": OK + DONE,
}
# Those in the middle of an answer: what was told stays, and the next engine goes on behind it.
IN_THE_MIDDLE = {
    "silence": b"",
    "half an event": b'data: {"choi',
    "nonsense": b"data: {nonsense\n\n",
    "no end": DONE,
}


@asynccontextmanager
async def engine(answer: bytes) -> AsyncIterator[str]:
    """Says this to whatever is generated, and then nothing more while its connection is open."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST"):
                writer.write(answer)
                await reader.read(-1)
            else:
                body = MODELS if b"/v1/models" in head else b""
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def asking(*engines: bytes) -> AsyncIterator[RemoteModel]:
    """The first one is asked first."""
    async with _all_of(engines) as urls, reaching(*urls) as model:
        first = next(each for each in model._fleet.upstreams if each.url == urls[0])
        model._fleet.pick = _preferring(model._fleet.pick, first)  # type: ignore[method-assign, assignment]
        yield model


@asynccontextmanager
async def _all_of(engines: Sequence[bytes]) -> AsyncIterator[list[str]]:
    if not engines:
        yield []
        return
    async with engine(engines[0]) as url, _all_of(engines[1:]) as urls:
        yield [url, *urls]


def _preferring(pick: Callable[..., object], first: object) -> Callable[..., object]:
    def preferred(session: bytes, without: Sequence[object] = (), **rest: bool) -> object:
        return first if first not in without else pick(session, without, **rest)

    return preferred


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_generation, "SILENT_S", 0.1)
    monkeypatch.setattr(remote_generation, "END_S", 0.05)
    monkeypatch.setattr(remote_generation, "STRANDED_S", 0.2)
    monkeypatch.setattr(remote_model, "LOOK_S", 0.05)


async def answered(model: RemoteModel) -> tuple[list[int], Finish | None]:
    generation = model.generate(PROMPT, ASKED)
    async with asyncio.timeout(END_S):
        await generation.stream(lambda delta: None)
    assert generation.facts.stamps.arrived_ns >= generation.facts.stamps.submitted_ns
    return generation.ids, generation.finish


@pytest.mark.parametrize("lie", AT_ONCE)
async def test_a_lie_at_once_leads_to_the_next_engine_and_without_one_to_an_error(
    lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def beside_an_honest_one() -> None:
        async with asking(AT_ONCE[lie], OK + WHOLE) as model:
            assert await answered(model) == (HONEST, Finish.LENGTH)

    async def alone() -> None:
        async with asking(AT_ONCE[lie]) as model:
            with pytest.raises(InferenceError) as refused:
                await answered(model)
            assert len(str(refused.value)) < 1000 and refused.value.status >= 500
            assert not model._going

    await asyncio.gather(beside_an_honest_one(), alone())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("lie", IN_THE_MIDDLE)
async def test_a_lie_in_the_middle_leads_to_the_next_engine_and_without_one_to_an_error(lie: str) -> None:
    begun = OK + tokens(HONEST[:4]) + IN_THE_MIDDLE[lie]
    async with asking(begun, OK + tokens(HONEST[4:], "length") + DONE) as model:
        assert await answered(model) == (HONEST, Finish.LENGTH)
    async with asking(OK + tokens(HONEST[:1]) + IN_THE_MIDDLE[lie], b"HTTP/1.1 503 No\r\n\r\n") as model:
        generation = model.generate(PROMPT, Sampling(max_tokens=10, seed=1, temperature=1))  # goes on nowhere
        with pytest.raises(InferenceError):
            async with asyncio.timeout(END_S):
                await generation.stream(lambda delta: None)
        assert generation.ids == HONEST[:1]


@pytest.mark.parametrize(
    ("said", "ids", "finish"),
    [
        (tokens(list(range(350, 450))), HONEST, Finish.LENGTH),
        (b"".join(tokens([each]) for each in range(350, 450)), HONEST, Finish.LENGTH),
        (tokens(HONEST), HONEST, Finish.LENGTH),
        (tokens(HONEST[:3], "stop"), HONEST[:3], Finish.STOP),
        (tokens(HONEST[:3], "stop") + tokens([399]) + DONE, HONEST[:3], Finish.STOP),
        (tokens([*HONEST[:3], 2, 399]) + tokens([399]), HONEST[:3], Finish.STOP),
        (tokens(HONEST[:3], "stop") + DONE + tokens([399]), HONEST[:3], Finish.STOP),
    ],
    ids=[
        "many at once",
        "many one by one",
        "no end",
        "no last word",
        "behind the end",
        "behind its token",
        "behind all",
    ],
)
async def test_what_comes_behind_the_end_is_no_part_of_an_answer(said: bytes, ids: list[int], finish: Finish) -> None:
    async with asking(OK + said) as model:
        assert await answered(model) == (ids, finish)
