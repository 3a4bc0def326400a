"""Bodies as they arrive: slow, stalled, compressed, damaged, too large."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import orjson
import pytest
from aiohttp import web

from migrations.pool import Database
from tests.worker.answering import answering
from tests.worker.edge.sockets import head, raw
from tests.worker.harness import Client, declared, make_services, serving
from worker.config import Config
from worker.edge import body as bodies
from worker.edge.body import CODINGS, inflated
from worker.errors import ApiError
from worker.http.request import EVERYBODY

QUESTION = orjson.dumps({"input": "Hello"})
BOMB = gzip.compress(bytes(100 * 2**20), 9)


@pytest.fixture
async def client(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(bodies, "STALL_S", 0.3)
    async with answering(database, "Hi.") as client:
        yield client


async def post(client: Client, data: bytes, **headers: str) -> tuple[int, dict[str, object]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.post("/v1/responses", data=data, headers=named) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate", "identity"])
async def test_a_compressed_body_is_read(client: Client, coding: str) -> None:
    data = {"gzip": gzip.compress(QUESTION), "deflate": zlib.compress(QUESTION)}
    assert (await post(client, data.get(coding.lower(), QUESTION), Content_Encoding=coding))[0] == 200


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "x"])
async def test_other_codings_are_refused(client: Client, coding: str) -> None:
    status, content = await post(client, QUESTION, Content_Encoding=coding)
    assert (status, content["error"]["param"]) == (415, "Content-Encoding")  # type: ignore[index]


@pytest.mark.parametrize(
    "data",
    [b"junk", gzip.compress(QUESTION)[:-5], gzip.compress(QUESTION) + b"more", b"\x1f\x8b"],
    ids=["none", "cut", "longer", "head"],
)
async def test_a_body_that_is_not_what_it_says_is_refused(client: Client, data: bytes) -> None:
    assert (await post(client, data, Content_Encoding="gzip"))[0] == 400
    assert (await post(client, data, Content_Encoding="deflate"))[0] == 400


async def test_a_body_is_not_decompressed_beyond_its_limit(client: Client) -> None:
    assert (await post(client, BOMB, Content_Encoding="gzip"))[0] == 413
    with pytest.raises(ApiError) as refused:
        inflated(BOMB, CODINGS["gzip"], 1000)
    assert refused.value.status == 413


def test_what_is_decompressed_beyond_its_limit_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ApiError):
            inflated(BOMB, CODINGS["gzip"], 1000)
        assert tracemalloc.get_traced_memory()[1] < 2**20  # of a hundred megabytes
    finally:
        tracemalloc.stop()


async def test_nothing_of_a_stranger_is_decompressed(client: Client) -> None:
    request = head(
        "POST", "/v1/responses", Authorization="Bearer ft_x", Content_Encoding="gzip", Content_Length="9999999"
    )
    async with raw(client) as stranger:
        began = time.thread_time()
        await stranger.send(request + BOMB)
        assert (await stranger.answer())[0] == 401
        await stranger.rest()
        assert time.thread_time() - began < 0.1  # all of it would take more, on this thread


async def test_a_stranger_that_still_sends_gets_to_read_the_answer(client: Client) -> None:
    request = head("POST", "/v1/responses", Content_Length="500000")
    async with raw(client) as stranger:
        await stranger.send(request)
        assert (await stranger.answer())[0] == 401
        await stranger.send(bytes(500_000))
        await stranger.send(head("GET", "/healthz"))  # the connection is still good
        assert (await stranger.answer())[0] == 200


async def test_a_stranger_that_sends_without_end_is_cut_off(client: Client) -> None:
    async with raw(client) as stranger:
        await stranger.send(head("POST", "/v1/responses", Content_Length="99999999"))
        assert (await stranger.answer())[0] == 401
        with pytest.raises(ConnectionError):
            for _ in range(100):
                await stranger.send(bytes(100_000))
                await asyncio.sleep(0)


@pytest.mark.parametrize("half", [b"", b'{"inp'])
async def test_a_body_that_stalls_is_answered_408(client: Client, half: bytes) -> None:
    async with raw(client) as slow:
        await slow.send(head("POST", "/v1/responses", client, Content_Length="99") + half)
        status, content = await slow.answer()
        assert (status, content["error"]["code"]) == (408, "request_timeout")  # type: ignore[index]


async def test_a_file_that_stalls_is_answered_408(client: Client) -> None:
    form = {"Content_Type": "multipart/form-data; boundary=b", "Content_Length": "9999"}
    async with raw(client) as slow:
        await slow.send(head("POST", "/v1/files", client, **form) + b"--b\r\nContent-Dispo")
        assert (await slow.answer())[0] == 408


async def test_a_slow_but_steady_body_is_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a pause may be, which is far longer than its pauses."""
    monkeypatch.setattr(bodies, "STALL_S", 1.0)
    async with raw(client) as steady:
        await steady.send(head("POST", "/v1/responses", client, Content_Length=str(len(QUESTION))))
        for byte in QUESTION:
            await steady.send(bytes([byte]))
            await asyncio.sleep(0.07)
        assert (await steady.answer())[0] == 200


async def test_a_slow_but_steady_file_is_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "STALL_S", 1.0)
    data = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        + b"x" * 80_000
        + b"\r\n--b--\r\n"
    )
    form = {"Content_Type": "multipart/form-data; boundary=b", "Content_Length": str(len(data))}
    async with raw(client) as steady:
        await steady.send(head("POST", "/v1/files", client, **form))
        for start in range(0, len(data), 8_000):
            await steady.send(data[start : start + 8_000])
            await asyncio.sleep(0.11)
        assert (await steady.answer())[0] == 200


async def test_a_body_that_comes_in_drops_ends_in_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BYTES_PER_S_MIN", 100 * 2**20)
    async with raw(client) as drops:
        await drops.send(head("POST", "/v1/responses", client, Content_Length="9999"))
        answer = asyncio.create_task(drops.answer())
        while not answer.done():
            await drops.send(b" ")
            await asyncio.sleep(0.02)
        assert (await answer)[0] == 408


@pytest.mark.parametrize("length", [{"Content_Length": "5000"}, {"Transfer_Encoding": "chunked"}])
async def test_a_body_beyond_its_limit_is_refused(database: Database, length: dict[str, str]) -> None:
    async with answering(database, "Hi.", config=Config(body_bytes=2048)) as client, raw(client) as large:
        data = b"1000\r\n" + bytes(0x1000) + b"\r\n0\r\n\r\n" if "Transfer_Encoding" in length else bytes(5000)
        await large.send(head("POST", "/v1/responses", client, **length) + data)
        assert (await large.answer())[0] == 413


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 1.0])
async def test_a_client_that_leaves_logs_nothing(client: Client, part: float, caplog: pytest.LogCaptureFixture) -> None:
    request = head("POST", "/v1/responses", client, Content_Length=str(len(QUESTION))) + QUESTION
    async with raw(client) as leaving:
        await leaving.send(request[: int(len(request) * part)])
        leaving.writer.transport.abort()
    async with client.get("/v1/models") as answer:
        assert answer.status == 200
    assert caplog.records == []


async def test_a_client_that_leaves_while_it_is_answered_logs_nothing(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    left = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(1000))
                await asyncio.sleep(0)
        finally:
            left.set()

    async with (
        serving(make_services(database), *declared(EVERYBODY, web.get("/slowly", slowly))) as client,
        raw(client) as leaving,
    ):
        await leaving.send(head("GET", "/slowly"))
        await leaving.reader.read(100)
        leaving.writer.transport.abort()
        await asyncio.wait_for(left.wait(), 60)
    assert caplog.records == []
