"""What every request gets: an id, a joined trace, security headers, and errors in one shape."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from pydantic import Field

from agents.errors import NotFound
from inference.errors import PromptTooLong, QueueFull
from migrations.pool import Database
from retrieval.errors import StoreNotFound
from tests.worker.edge.sockets import raw
from tests.worker.harness import SECRET, Client, make_services, serving
from worker.auth.keys import Keys
from worker.config import Config
from worker.errors import ApiError
from worker.http.middleware import join_trace
from worker.http.request import BODY, IGNORED, TRACE
from worker.wire.strict import Strict, parse

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Body(Strict):
    input: list[dict[str, int]]
    size: int = Field(ge=1, default=1)


def raising(error: Exception) -> Any:
    async def handler(request: web.Request) -> web.Response:
        raise error

    return handler


async def echo(request: web.Request) -> web.Response:
    parse(Body, request[BODY])
    return web.Response()


async def spans(request: web.Request) -> web.Response:
    trace = request[TRACE]
    ends = [span.end_ns - trace.start_ns for span in trace.spans]
    starts = [span.start_ns - trace.start_ns for span in trace.spans]
    return web.json_response({"names": [s.name for s in trace.spans], "starts": starts, "ends": ends, "id": trace.id})


async def ignores(request: web.Request) -> web.Response:
    request[IGNORED].add("verbosity", "ignore_eos", "verbosity")
    return web.Response()


async def slow(request: web.Request) -> web.Response:
    await asyncio.sleep(0.02)
    return web.Response()


async def breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"half an ans")
    raise RuntimeError("engine on fire")


@pytest.fixture(scope="module")
async def client(database: Database) -> AsyncIterator[Client]:
    services = make_services(database, Config(body_bytes=2048))
    routes = [
        web.get("/v1/bug", raising(RuntimeError("secret detail"))),
        web.get("/v1/too-long", raising(PromptTooLong("900 tokens do not fit"))),
        web.get("/v1/queue-full", raising(QueueFull("busy", 2.5))),
        web.get("/v1/not-found", raising(NotFound("conversation", "conv_1"))),
        web.get("/v1/no-store", raising(StoreNotFound("handbook"))),
        web.get("/v1/database-away", raising(ConnectionRefusedError())),
        web.get("/v1/refused", raising(ApiError(409, "no", param="x", code="y"))),
        web.get("/v1/breaks-off", breaks_off),
        web.get("/v1/slow", slow),
        web.get("/v1/ignores", ignores),
        web.post("/v1/echo", echo),
        web.post("/v1/spans", spans),
    ]
    async with serving(services, *routes) as client:
        key = await _new_key(database)
        client.session.headers["Authorization"] = f"Bearer {key}"
        yield client


async def _new_key(database: Database) -> str:
    keys = Keys(database, SECRET)
    return (await keys.create(await keys.tenant("middleware"), "test"))[1]


@pytest.mark.parametrize(
    ("path", "status", "code", "param"),
    [
        ("/v1/too-long", 400, "context_length_exceeded", "input"),
        ("/v1/queue-full", 503, "overloaded", None),
        ("/v1/not-found", 404, "not_found", None),
        ("/v1/no-store", 404, "not_found", "vector_store_ids"),
        ("/v1/database-away", 503, None, None),
        ("/v1/refused", 409, "y", "x"),
        ("/v1/nowhere", 404, None, None),
        ("/v1/echo", 405, None, None),
        ("/v1/bug", 500, "server_error", None),
    ],
)
async def test_every_failure_has_the_error_shape(
    client: Client, path: str, status: int, code: str | None, param: str | None
) -> None:
    async with client.get(path) as response:
        body = await response.json()
    assert response.status == status
    assert body.keys() == {"error"}
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)
    assert body["error"]["message"] and body["error"]["type"]
    assert "secret detail" not in str(body)


async def test_a_refusal_for_now_says_when_to_come_back(client: Client) -> None:
    async with client.get("/v1/queue-full") as response:
        assert (response.headers["Retry-After-Ms"], response.headers["Retry-After"]) == ("2500", "2")


async def test_an_unexpected_failure_names_the_request(client: Client) -> None:
    async with client.get("/v1/bug", headers={"X-Request-Id": "mine-1"}) as response:
        assert response.headers["X-Request-Id"] == "mine-1"
        assert "mine-1" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("id", ["", "x" * 65, "a b", 'a"b'])
async def test_a_request_id_that_is_not_plain_is_replaced(client: Client, id: str) -> None:
    async with client.get("/healthz", headers={"X-Request-Id": id}) as response:
        assert response.headers["X-Request-Id"].startswith("req_")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"input": [{"a": "x"}]}', "input[0].a"),
        ('{"input": [], "size": 0}', "size"),
        ("{}", "input"),
        ("{", None),
        ("\x00", None),
        ("[]", None),
    ],
)
async def test_a_body_that_does_not_fit_names_the_field(client: Client, body: str, param: str | None) -> None:
    async with client.post("/v1/echo", data=body.encode()) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param


async def test_a_body_beyond_the_limit_is_refused(client: Client) -> None:
    async with client.post("/v1/echo", data=b"x" * 2049) as response:
        assert response.status == 413
        error = (await response.json())["error"]
    assert error["message"] and error["code"] == "request_too_large"


async def test_a_method_that_does_not_fit_is_told_the_ones_that_do(client: Client) -> None:
    async with client.delete("/v1/models") as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
        assert (await response.json())["error"]["message"] == "This address takes GET, not DELETE."


async def test_a_base_url_without_the_version_is_told_the_address_that_is_meant(client: Client) -> None:
    async with client.get("/models") as response:
        assert "Did you mean /v1/models?" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("path", ["//v1/spans", "/v1//spans", "/v1/spans/", "//v1//spans/"])
async def test_an_address_is_found_whatever_its_slashes(client: Client, path: str) -> None:
    async with client.session.post(client.make_url("/").with_path(path), data=b"{}") as response:
        assert (response.status, (await response.json())["names"]) == (200, ["edge", "auth", "edge"])


async def test_slashes_lead_to_no_other_server(client: Client) -> None:
    address = client.make_url("/").with_path("//example.com//v1/models/")
    async with client.session.get(address, allow_redirects=False) as response:
        assert response.status == 404


async def test_what_was_ignored_is_named_in_a_header(client: Client) -> None:
    async with client.get("/v1/ignores") as response:
        assert response.headers["X-Firsttoken-Ignored"] == "verbosity,ignore_eos"
    async with client.get("/healthz") as response:
        assert "X-Firsttoken-Ignored" not in response.headers


@pytest.mark.parametrize("path", ["/healthz", "/v1/refused", "/v1/bug", "/v1/nowhere", "/v1/queue-full"])
async def test_no_response_tells_what_the_worker_is_built_with(client: Client, path: str) -> None:
    async with client.get(path) as response:
        assert response.headers.getall("Server") == ["firsttoken"]


async def test_what_is_no_http_is_answered_under_the_same_name(client: Client) -> None:
    async with raw(client) as connection:
        await connection.send(b"GET / HTTP/9.x\r\n\r\n")
        head = (await connection.rest()).partition(b"\r\n\r\n")[0]
    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert b"\r\nServer: firsttoken" in head and b"aiohttp" not in head


async def test_a_response_says_how_long_its_head_took(client: Client) -> None:
    async with client.get("/v1/slow") as response:
        assert 20 <= int(response.headers["Openai-Processing-Ms"]) < 10_000


async def test_a_failure_inside_a_stream_breaks_the_connection(client: Client) -> None:
    async with client.get("/v1/breaks-off") as response:
        with pytest.raises(Exception, match=r"payload|closed|disconnect"):
            await response.read()


async def test_an_inbound_trace_is_joined(client: Client) -> None:
    async with client.post("/v1/spans", headers={"Traceparent": PARENT}, data=b"{}") as response:
        assert (await response.json())["id"] == "0af7651916cd43dd8448eb211c80319c"
        version, id, span, flags = response.headers["Traceparent"].split("-")
    assert (version, id, flags) == ("00", "0af7651916cd43dd8448eb211c80319c", "01")
    assert span != "b7ad6b7169203331"


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "garbage",
        PARENT.upper(),
        "ff" + PARENT[2:],
        PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
    ],
)
def test_an_invalid_traceparent_starts_a_trace_of_our_own(traceparent: str | None) -> None:
    trace = join_trace(traceparent)
    assert "parent_id" not in trace.attributes
    assert len(trace.id) == 32 and trace.id != "0af7651916cd43dd8448eb211c80319c"


async def test_the_spans_before_the_handler_tile_the_time_since_arrival(client: Client) -> None:
    async with client.post("/v1/spans", data=b"{}") as response:
        seen = await response.json()
    assert seen["names"] == ["edge", "auth", "edge"]
    assert seen["starts"][0] == 0
    gaps_ms = [(start - end) / 1e6 for start, end in zip(seen["starts"][1:], seen["ends"], strict=False)]
    assert all(0 <= gap < 5 for gap in gaps_ms)


async def test_pages_and_answers_carry_the_security_headers(client: Client) -> None:
    async with client.get("/healthz") as response:
        assert "default-src 'self'" in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
