"""Sends cases to a server: as chat completions, which every server with OpenAI's API supports; as responses if
documents are searched; or as a search alone if nothing else is expected."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from inference.remote.protocol import DONE, Events
from worker.cli.evals.suite import Answer, Called, Case, Found, Usage
from worker.errors import BUSY, StartError

ANSWER_S_MAX = 600.0  # a slow machine and a long answer
LOOK_S_MAX = 30.0
CONNECT_S_MAX = 10.0
TRIES = 4
RETRY_S_MAX = 15.0
RESULTS_MAX = 10  # of a search: lower ranks score nothing
REASON_CHARS_MAX = 200
CALLS_MAX = 128  # of an answer: calls with arbitrary indexes beyond this are invalid
# What unexpected data of a server may raise; `Malformed` is a ValueError.
ODD = (ValueError, TypeError, KeyError, IndexError, AttributeError)
_TRACE = re.compile(r'traceparent;desc="00-([0-9a-f]{32})-')


def session() -> aiohttp.ClientSession:
    """With timeouts for long answers."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX, sock_read=ANSWER_S_MAX)
    return aiohttp.ClientSession(timeout=timeout)


class Refused(Exception):
    """The server answered with an error status; the message is one line."""

    def __init__(self, status: int, reason: str, retry_after_s: float) -> None:
        super().__init__(f"status {status}: {reason}")
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Heard:
    """What has been received of an answer so far."""

    began: float = field(default_factory=perf_counter)
    text: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)  # name and arguments
    found: list[Found] = field(default_factory=list)
    first_ms: float | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def token(self) -> None:
        if self.first_ms is None:
            self.first_ms = self.ms

    @property
    def ms(self) -> float:
        return (perf_counter() - self.began) * 1e3

    @property
    def answer(self) -> Answer:
        details = self.usage.get("prompt_tokens_details") or self.usage.get("input_tokens_details") or {}
        took = Usage(
            self.first_ms,
            self.ms,
            _count(self.usage.get("prompt_tokens", self.usage.get("input_tokens"))),
            _count(details.get("cached_tokens")),
            _count(self.usage.get("completion_tokens", self.usage.get("output_tokens"))),
        )
        calls = tuple(Called(name, arguments) for name, arguments in self.calls)
        return Answer("".join(self.text), calls, tuple(self.found), took, self.error)


class EvalClient:
    def __init__(self, http: aiohttp.ClientSession, url: str, key: str, model: str | None = None) -> None:
        """Without a `model`, the first one that the server lists."""
        self._http = http
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.model = model or ""

    async def check(self) -> None:
        """Raises StartError if no server answers, or it does not serve the model."""
        try:
            listed = await self._get("/v1/models")
            names = [str(each["id"]) for each in listed["data"]]
        except Refused as error:
            raise StartError(f"{self._url}: {error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise StartError(f"{self._url}: there is no response ({error or type(error).__name__})") from None
        except ODD:
            raise StartError(f"{self._url}: there is no OpenAI-compatible server") from None
        if not names:
            raise StartError(f"{self._url}: it serves no model")
        self.model = self.model or names[0]
        if self.model not in names and not await self._knows(self.model):
            raise StartError(f"{self._url}: there is no model {self.model}. It serves: {', '.join(names[:10])}")

    async def ask(self, case: Case) -> Answer:
        """Errors become part of the answer."""
        ways = self._search if case.expect.only_finds else self._respond if case.stores else self._complete
        for number in range(TRIES):
            heard = _Heard()
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    trace = await ways(case, heard)
                    return await self._with_cost(heard.answer, trace)
            except Refused as error:
                if error.status not in BUSY or number == TRIES - 1:
                    return Answer(error=str(error))
                await asyncio.sleep(error.retry_after_s)
            except TimeoutError:
                return Answer(error=f"no answer within {ANSWER_S_MAX:.0f} s")
            except (aiohttp.ClientError, OSError, *ODD) as error:
                return Answer(error=f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX])
        raise AssertionError("unreachable")

    async def decide(self, instructions: str, text: str, schema: Mapping[str, Any], tokens: int) -> Mapping[str, Any]:
        """An object of this schema, generated by the model. Raises StartError if there is none."""
        body = {
            "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": text}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "verdict", "strict": True, "schema": dict(schema)},
            },
            "max_tokens": tokens,
        }
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                heard = _Heard()
                await self._stream("/v1/chat/completions", body, heard, _heard_chunk)
            verdict = "".join(heard.text)
        except Refused as error:
            raise StartError(f"the judge {self.model} cannot be asked: {error}") from None
        except (aiohttp.ClientError, OSError, TimeoutError, *ODD) as error:
            raise StartError(f"the judge {self.model} cannot be asked: {error or type(error).__name__}") from None
        try:
            decided: Mapping[str, Any] = orjson.loads(verdict)
        except ValueError:
            return {}
        return decided if isinstance(decided, dict) else {}

    async def _complete(self, case: Case, heard: _Heard) -> str | None:
        system = [{"role": "system", "content": case.instructions}] if case.instructions else []
        body: dict[str, Any] = {
            "messages": [*system, *case.said],
            "max_tokens": case.max_tokens,
            "stream_options": {"include_usage": True},
        }
        if case.tools:
            body["tools"] = [{"type": "function", "function": tool.model_dump()} for tool in case.tools]
        return await self._stream("/v1/chat/completions", body, heard, _heard_chunk)

    async def _respond(self, case: Case, heard: _Heard) -> str | None:
        functions = [{"type": "function", **tool.model_dump()} for tool in case.tools or ()]
        body = {
            "input": [{"role": each["role"], "content": each.get("content") or ""} for each in case.said],
            "tools": [{"type": "file_search", "vector_store_ids": case.stores}, *functions],
            "include": ["file_search_call.results"],
            "max_output_tokens": case.max_tokens,
            "store": False,
        }
        if case.instructions:
            body["instructions"] = case.instructions
        return await self._stream("/v1/responses", body, heard, _heard_event)

    async def _search(self, case: Case, heard: _Heard) -> str | None:
        for store in case.stores or ():
            body = {"query": case.question, "max_num_results": RESULTS_MAX}
            async with self._post(f"/v1/vector_stores/{quote(store, safe='')}/search", body) as reply:
                for each in (await reply.json())["data"]:
                    heard.found.append(_found(each, "\n".join(part["text"] for part in each["content"])))
        return None

    async def _stream(self, path: str, body: dict[str, Any], heard: _Heard, hear: Any) -> str | None:
        """The trace id, if the server sends one."""
        asked = {**body, "model": self.model, "temperature": 0, "stream": True}
        async with self._post(path, asked) as reply:
            events = Events()
            async for data in reply.content.iter_any():
                for event in events.feed(data):
                    if event and event != DONE:
                        hear(orjson.loads(event), heard)
            found = _TRACE.search(reply.headers.get("Server-Timing", ""))
        return found[1] if found else None

    async def _with_cost(self, answer: Answer, trace: str | None) -> Answer:
        """With the times and costs that a worker of this project reports."""
        if trace is None:
            return answer
        try:
            found = await self._get(f"/ops/api/traces/{trace}")
            attributes = found["attributes"]
            took = replace(
                answer.took,
                engine_ms=_number(attributes.get("firsttoken.engine_ms")),
                cost=_number(attributes.get("firsttoken.cost")),
            )
        except (Refused, aiohttp.ClientError, OSError, *ODD):
            return answer
        return replace(answer, took=took)

    async def _knows(self, model: str) -> bool:
        """Some servers list fewer names than they accept, such as aliases."""
        try:
            await self._get(f"/v1/models/{quote(model)}")
        except (Refused, aiohttp.ClientError, TimeoutError, ValueError):
            return False
        return True

    async def _get(self, path: str) -> Any:
        timeout = aiohttp.ClientTimeout(total=LOOK_S_MAX)
        async with self._http.get(self._url + path, headers=self._headers, timeout=timeout) as reply:
            await _accepted(reply)
            return orjson.loads(await reply.read())

    @asynccontextmanager
    async def _post(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Raises Refused."""
        headers = {**self._headers, "Content-Type": "application/json"}
        async with self._http.post(self._url + path, data=orjson.dumps(body), headers=headers) as reply:
            await _accepted(reply)
            yield reply


async def _accepted(reply: aiohttp.ClientResponse) -> None:
    if reply.status < 400:
        return
    body = await reply.read()
    try:
        reason = str(orjson.loads(body)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        reason = body.decode("utf-8", "replace")
    try:
        retry_after_s = float(reply.headers.get("Retry-After", "1"))
    except ValueError:
        retry_after_s = 1.0
    wait_s = retry_after_s if 0 <= retry_after_s <= RETRY_S_MAX else RETRY_S_MAX
    raise Refused(reply.status, " ".join(reason.split())[:REASON_CHARS_MAX], wait_s)


def _heard_chunk(chunk: Mapping[str, Any], heard: _Heard) -> None:
    if error := chunk.get("error"):
        heard.error = str(error.get("message") if isinstance(error, Mapping) else error)[:REASON_CHARS_MAX]
        return
    heard.usage = chunk.get("usage") or heard.usage
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if content := delta.get("content"):
            heard.token()
            heard.text.append(content)
        if delta.get("reasoning_content"):
            heard.token()
        for call in delta.get("tool_calls") or ():
            heard.token()
            if not 0 <= (index := int(call.get("index") or 0)) < CALLS_MAX:
                raise ValueError(f"call {index} of an answer")
            while len(heard.calls) <= index:
                heard.calls.append(["", ""])
            function = call.get("function") or {}
            heard.calls[index][0] += function.get("name") or ""
            heard.calls[index][1] += function.get("arguments") or ""


def _heard_event(event: Mapping[str, Any], heard: _Heard) -> None:
    kind = event.get("type")
    if kind == "response.output_text.delta":
        heard.token()
        heard.text.append(event["delta"])
    elif kind in ("response.function_call_arguments.delta", "response.reasoning_text.delta"):
        heard.token()
    elif kind == "response.output_item.done":
        item = event["item"]
        if item["type"] == "function_call":
            heard.calls.append([item["name"], item["arguments"]])
        elif item["type"] == "file_search_call":
            heard.found += [_found(each, each["text"]) for each in item.get("results") or ()]
    elif kind in ("response.completed", "response.incomplete", "response.failed"):
        response = event["response"]
        heard.usage = response.get("usage") or {}
        if response.get("error"):
            heard.error = str(response["error"].get("message"))[:REASON_CHARS_MAX]
    elif kind == "error":
        heard.error = str(event.get("message"))[:REASON_CHARS_MAX]


def _found(result: Mapping[str, Any], text: str) -> Found:
    return Found(str(result.get("filename") or result.get("file_id")), text)


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
