"""The HTTP application of an engine: from token ids to token ids, for the workers that share it. No database, no text.

Everything that llama.cpp will see is validated first: an invalid request gets a 400 that names the field. The body of a
request has vLLM's names, and ours in "firsttoken". vLLM parameters that we do not support are refused if they would
change the response, and ignored if they would not.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias
from uuid import UUID

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from pydantic import ConfigDict, Field, StringConstraints

from agents.inflight import InFlight
from inference.errors import EngineStopped, GrammarFailed, InvalidSchema
from inference.frozen import changed
from inference.generation import Due, Generation, Grammar, Priority, ReasoningLimit, Sampling, Terms
from inference.model import ChatModel
from inference.prompt import PromptTokens
from inference.remote.protocol import BOUNDARIES_MAX, MODELS_PATH, PATH, spell_nothing
from inference.remote.transport import PATH as CHANNEL_PATH
from inference.remote.transport import PROTOCOL
from inference.trace import now_ns
from worker.edge.body import BUDGET, Budget, is_gone, read_body
from worker.edge.guard import guard_of
from worker.engines.exchange import keep_alive
from worker.engines.served_channel import HttpBody, ServedChannel, SharedReply, TokenStream
from worker.errors import ApiError, ClientGone, invalid
from worker.http.error_mapping import explained
from worker.http.middleware import error_response, join_trace
from worker.http.request import json_response
from worker.lifecycle.supervisor import first_of
from worker.telemetry.prometheus import Scraped, Stats, engine_gauges, family, memory_gauge
from worker.wire import limits
from worker.wire.options import Bias, SamplingParameters, TokenId
from worker.wire.strict import Strict, Unsupported, only, parsed

GRAMMAR_CHARS_MAX = (
    1_000_000  # schemas of all tools of a turn; llguidance has limits of its own for the compiled grammar
)
PROMPT_TOKENS_MAX = 1_000_000  # the model's context is the real limit
SALT_CHARS_MAX = 256
SEED_MAX = 2**64 - 1
OUT_OF_REACH_MAX = 100  # tokens that a worker adds to its client's logit biases
DEADLINE_MS_MAX = 24 * 3600 * 1000

GrammarText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=GRAMMAR_CHARS_MAX)]
Boundary: TypeAlias = Annotated[int, Field(ge=0, le=PROMPT_TOKENS_MAX)]


class StructuredOutputs(Strict):
    grammar: GrammarText


class SamplingParams(SamplingParameters):
    max_tokens: Annotated[int, Field(ge=1, le=limits.OUTPUT_TOKENS_MAX)] = 16  # the default of vLLM
    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=limits.BIAS_MAX + OUT_OF_REACH_MAX)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    structured_outputs: StructuredOutputs | None = None
    detokenize: bool = False  # not supported here
    n: Annotated[Any, only(1, None)] = 1
    stop: Annotated[Any, only(None, [])] = None  # handled by the worker, which has the text
    ignore_eos: Annotated[Any, only(False, None)] = False
    min_tokens: Annotated[Any, only(0, None)] = 0
    stop_token_ids: Annotated[Any, only(None, [])] = None
    prompt_logprobs: Unsupported = None


class MarkedGrammar(Strict):
    """Constrains the response from the mark on: see `LanguageModel.prepare`."""

    text: GrammarText
    begins: Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Thinking(Strict):
    """A limit of the reasoning: see `ReasoningLimit`."""

    open: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    close: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    ends: Annotated[list[Annotated[int, Field(ge=0, le=9_999_999)]], Field(min_length=1, max_length=64)]
    begun: bool = False
    tokens: Annotated[int, Field(ge=0, le=limits.OUTPUT_TOKENS_MAX)]

    @property
    def limit(self) -> ReasoningLimit:
        return ReasoningLimit(self.open, self.close, tuple(self.ends), self.begun, self.tokens)


class Own(Strict):
    """The first token is due in `due_ms`, each further one `pace_ms` after the last; a request that `waits` is accepted
    however late it will be. `ahead`: only prefill the prompt. The first `shared` tokens contain no tenant's data, and
    the last `written` ones of `token_ids` belong to the response, which continues after them. Other prompts may part
    from this one at its `boundaries`."""

    deadline_ms: Annotated[float, Field(gt=0, le=DEADLINE_MS_MAX)] | None = None
    due_ms: Annotated[float, Field(gt=0, le=DEADLINE_MS_MAX)] | None = None
    pace_ms: Annotated[float, Field(gt=0, le=DEADLINE_MS_MAX)] | None = None
    waits: bool = False
    deterministic: bool = False
    ahead: bool = False
    shared: Annotated[int, Field(ge=0, le=PROMPT_TOKENS_MAX)] = 0
    written: Annotated[int, Field(ge=0, lt=PROMPT_TOKENS_MAX)] = 0
    boundaries: Annotated[list[Boundary], Field(max_length=BOUNDARIES_MAX)] = Field(default_factory=list)
    prediction: Annotated[list[int], Field(max_length=PROMPT_TOKENS_MAX)] = Field(default_factory=list)
    marked_grammar: MarkedGrammar | None = None
    thought: Thinking | None = None


class StreamOptions(Strict):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = True


class GenerateRequest(Strict):
    BULK: ClassVar = "token_ids"

    request_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "generate"
    model: Annotated[str, StringConstraints(max_length=256)] | None = None  # if there is one
    token_ids: Annotated[list[int], Field(min_length=1, max_length=PROMPT_TOKENS_MAX)]
    sampling_params: SamplingParams
    stream: Literal[True]
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, StringConstraints(max_length=SALT_CHARS_MAX)] = ""
    priority: Annotated[int, Field(ge=0, le=max(Priority))] = Priority.STANDARD
    features: Unsupported = None
    kv_transfer_params: Unsupported = None
    firsttoken: Own = Own()

    @property
    def grammar(self) -> tuple[str, str] | None:
        """Its text and its mark, if the response is constrained."""
        if (marked := self.firsttoken.marked_grammar) is not None:
            return marked.text, marked.begins
        structured = self.sampling_params.structured_outputs
        return None if structured is None else (structured.grammar, "")

    def sampling(self, grammar: Grammar | None) -> Sampling:
        params = self.sampling_params
        return changed(
            params.drawn().completed({}),  # the worker knows the model's usual values
            max_tokens=params.max_tokens,
            seed=params.seed,
            logit_bias={int(token): bias for token, bias in (params.logit_bias or {}).items()},
            deterministic=self.firsttoken.deterministic,
            top_logprobs=params.logprobs,
            grammar=grammar,
            reasoning_limit=self.firsttoken.thought.limit if self.firsttoken.thought else None,
        )


def gauges_of(model: ChatModel) -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for read in (engine_gauges, memory_gauge, _customary):
        registry.register(Scraped(partial(read, model.stats)))
    return registry


def _customary(stats: Stats) -> list[Metric]:
    """The names of vLLM, which llm-d, KEDA and the Gateway API's endpoint pickers read, with its label."""
    engine = stats()
    used = min(1.0, engine["running"] / engine["parallel"])  # a tenant below its share may run beyond them
    read, cached = engine["prompt_tokens_total"], engine["cached_tokens_total"]
    customary = (
        ("num_requests_waiting", "Waiting requests", engine["waiting"]),
        ("num_requests_running", "Running requests", engine["running"]),
        ("kv_cache_usage_perc", "Share of the places for running requests in use, 0 to 1", used),
        ("gpu_cache_usage_perc", "The same, under its older name", used),
        ("prompt_tokens_total", "Prompt tokens", read),
        ("generation_tokens_total", "Generated tokens", engine["generated_tokens_total"]),
        ("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", read),
        ("prefix_cache_hits_total", "Prompt tokens found in the prefix cache", cached),
    )
    model = [engine["model"]]
    return [family(f"vllm:{name}", text, [(model, value)], "model_name") for name, text, value in customary]


log = logging.getLogger("firsttoken.engine_app")

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

ID_BYTES = 8  # of a token id with its comma, in a prompt or a prediction
BODY_BYTES_MIN = 2 * 2**20  # for a grammar, and everything but the prompt
BODIES_BYTES_MAX = 128 * 2**20  # of all concurrent uploads
HEALTH = "/health"
CHANNELS_MAX = 256  # each may hold a body that has not arrived completely
SWITCHED = f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: {PROTOCOL}\r\nConnection: Upgrade\r\n\r\n".encode()
WORKERS = UUID(int=0)  # they share one limit for bodies: tenants are not known here

MODEL: web.AppKey[ChatModel] = web.AppKey("model", ChatModel)
TOKEN: web.AppKey[bytes] = web.AppKey("token", bytes)  # that workers must present; empty: none
DRAINING: web.AppKey[asyncio.Event] = web.AppKey("engine_draining", asyncio.Event)
WORK: web.AppKey[InFlight] = web.AppKey("engine_work", InFlight)
CHANNELS: web.AppKey[set[ServedChannel]] = web.AppKey("channels", set)
GAUGES: web.AppKey[CollectorRegistry] = web.AppKey("gauges", CollectorRegistry)


def build_engine_app(model: ChatModel, token: str | None) -> web.Application:
    app = web.Application(middlewares=[answer_errors, check_token])
    app[MODEL], app[TOKEN] = model, (token or "").encode()
    app[DRAINING], app[WORK] = asyncio.Event(), InFlight()
    app[BUDGET] = Budget(BODIES_BYTES_MAX, BODIES_BYTES_MAX)
    app[GAUGES] = gauges_of(model)
    app[CHANNELS] = set()
    app.add_routes(
        [
            web.post(PATH, generate),
            web.get(CHANNEL_PATH, open_channel),
            web.get(HEALTH, health),
            web.get(MODELS_PATH, list_models),
            web.get("/metrics", scrape),
        ]
    )
    return app


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Outermost: whatever happens inside, the client gets a well-formed error."""
    guard = guard_of(request)
    if guard:
        guard.begin_serving()
    try:
        with nullcontext() if request.path == CHANNEL_PATH else request.app[WORK].track():
            return await handler(request)
    except Exception as error:
        if isinstance(error, ClientGone | ConnectionError) and is_gone(request):
            raise ConnectionResetError("the worker is gone") from None
        trace = join_trace(request.headers.get("Traceparent"))
        return error_response(explained(error, log, "%s %s of trace %s", request.method, request.path, trace.id))
    finally:
        if guard:
            guard.end_serving(request)


@web.middleware
async def check_token(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Before anything of the body is read. Health checks are for balancers, which have no token."""
    expected = request.app[TOKEN]
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    if request.path != HEALTH and expected and not hmac.compare_digest(given, b"Bearer " + expected):
        raise ApiError(401, "This engine requires the token that it shares with its workers.", code="invalid_api_key")
    return await handler(request)


async def generate(request: web.Request) -> web.StreamResponse:
    app = request.app
    _check_open(app)
    if request.content_type != "application/json":  # a browser page can send anything else without a preflight
        raise ApiError(415, "The body must be application/json.", param="Content-Type")
    with app[BUDGET].reserve(WORKERS) as holding:
        raw = await read_body(request, holding, bytes_max=_body_bytes_max(app))
        asked = await parsed(GenerateRequest, raw)
    generation = await _taken(asked, app[MODEL])
    if generation is None:
        return web.Response(body=spell_nothing(), content_type="text/event-stream")
    try:
        return await HttpBody(request).send(asked.request_id, generation)
    finally:
        generation.cancel()


async def open_channel(request: web.Request) -> web.StreamResponse:
    """A connection that all requests of a worker share, for as long as it is open."""
    app, guard, transport = request.app, guard_of(request), request.transport
    _check_open(app)
    if guard is None or transport is None or request.headers.get("Upgrade") != PROTOCOL:
        raise ApiError(426, f"This address requires `Upgrade: {PROTOCOL}`.", headers={"Upgrade": PROTOCOL})
    if len(app[CHANNELS]) >= CHANNELS_MAX:
        raise EngineStopped("the engine has reached its limit of worker connections")
    keep_alive(transport)
    channel = ServedChannel(transport, partial(_answer_on, app), _body_bytes_max(app))
    app[CHANNELS].add(channel)
    try:
        guard.hand_over(channel)
        transport.write(SWITCHED)
        await channel.closed.wait()
    finally:
        app[CHANNELS].discard(channel)
    raise ClientGone("the worker closed the connection")


async def _answer_on(app: web.Application, reply: SharedReply, body: bytes) -> None:
    """The response to one request of a channel. Cancelled when its caller no longer waits."""
    generation = None
    try:
        with app[WORK].track():
            _check_open(app)
            with app[BUDGET].reserve(WORKERS) as holding:
                holding.resize(len(body))
                asked = await parsed(GenerateRequest, body)
            generation = await _taken(asked, app[MODEL])
            reply.taken()
            if generation is None:
                reply.last(spell_nothing())
            else:
                reply.last(await TokenStream(reply, asked.request_id, generation).end())
    except Exception as error:
        answer = explained(error, log, "a request of trace %s", join_trace(reply.traceparent).id)
        reply.refuse(answer.status, answer.body, answer.retry_after_s)
    finally:
        if generation is not None:
            generation.cancel()


def _check_open(app: web.Application) -> None:
    if app[DRAINING].is_set():
        raise EngineStopped("the engine is shutting down")


def _body_bytes_max(app: web.Application) -> int:
    return BODY_BYTES_MIN + 2 * ID_BYTES * app[MODEL].context_length


async def _taken(asked: GenerateRequest, model: ChatModel) -> Generation | None:
    _check_tokens(asked, model)
    return _submitted(asked, model, await _grammar(asked, model))


def _check_tokens(asked: GenerateRequest, model: ChatModel) -> None:
    """Raises ApiError 400 for anything that is not a token of this model."""
    size = model.vocabulary_size
    for name, ids in (("token_ids", asked.token_ids), ("firsttoken.prediction", asked.firsttoken.prediction)):
        if min(ids, default=0) < 0 or max(ids, default=0) >= size:
            at, unknown = next((at, id) for at, id in enumerate(ids) if not 0 <= id < size)
            raise invalid(f"{name}[{at}]", f"this model has no token {unknown}; it has {size}.")


async def _grammar(asked: GenerateRequest, model: ChatModel) -> Grammar | None:
    """Compiled in a thread, within the limits of a grammar. Raises ApiError 400."""
    if asked.grammar is None:
        return None
    try:
        return await asyncio.to_thread(model.prepare, *asked.grammar, salt=asked.cache_salt)
    except InvalidSchema as error:
        error.param = "sampling_params.structured_outputs.grammar"
        raise


def _submitted(asked: GenerateRequest, model: ChatModel, grammar: Grammar | None) -> Generation | None:
    """None if there is nothing to do. Raises InferenceError and ApiError 400."""
    own, end = asked.firsttoken, len(asked.token_ids) - asked.firsttoken.written
    prompt, written = PromptTokens(asked.token_ids[:end], own.boundaries), asked.token_ids[end:]
    if end < 1:
        raise ApiError(400, "Invalid 'firsttoken.written': nothing is left of the prompt.", param="firsttoken.written")
    if own.shared:
        model.share(prompt[: own.shared])
    if own.ahead:
        return model.prefill_ahead(prompt, salt=asked.cache_salt, exact=own.deterministic)
    if asked.priority == Priority.AHEAD:
        raise ApiError(400, "Invalid 'priority': this class is reserved for prefill ahead.", param="priority")
    sampling = asked.sampling(grammar)
    try:
        return model.generate(
            prompt,
            replace(sampling, max_tokens=sampling.max_tokens + len(written)),
            Terms(
                salt=asked.cache_salt,
                priority=Priority(asked.priority),
                due=Due(_at_ns(own.due_ms), own.waits, own.pace_ms and own.pace_ms / 1e3),
                deadline_ns=_at_ns(own.deadline_ms),
                written=written,
                prediction=own.prediction,
            ),
        )
    except GrammarFailed as error:
        raise ApiError(400, f"Invalid 'firsttoken.written': {error}.", param="firsttoken.written") from None


def _at_ns(in_ms: float | None) -> int | None:
    return None if in_ms is None else now_ns() + round(in_ms * 1e6)


async def health(request: web.Request) -> web.Response:
    """503 while it accepts no requests, so that a balancer sends none."""
    failed = "failed" if request.app[MODEL].failed else None
    state = "draining" if request.app[DRAINING].is_set() else failed or "ok"
    return json_response({"status": state}, status=200 if state == "ok" else 503)


async def list_models(request: web.Request) -> web.Response:
    model = request.app[MODEL]
    described = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "firsttoken",
        "max_model_len": model.context_length,
        "firsttoken": {"vocabulary": model.vocabulary_digest, "parameters": model.parameters, "channel": True},
    }
    return json_response({"object": "list", "data": [described]})


async def scrape(request: web.Request) -> web.Response:
    text = await asyncio.to_thread(generate_latest, request.app[GAUGES])
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def drain(app: web.Application, drain_s: float, hurried: asyncio.Event) -> None:
    """Return when nothing is in progress, after `drain_s` seconds, or on a second signal. Meanwhile the socket stays
    open, so that workers are sent elsewhere (503)."""
    app[DRAINING].set()
    await first_of(app[WORK].idle(), hurried.wait(), within_s=drain_s)
    channels = app[CHANNELS]
    for channel in tuple(channels):
        channel.close()
