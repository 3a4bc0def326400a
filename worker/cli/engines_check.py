"""Whether the engines that the settings name can serve this worker: `firsttoken doctor --engines URL,...`."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from functools import partial

from inference.core import Sampling
from inference.errors import InferenceError, ModelNotLoaded
from inference.provisioning.catalogue import find
from inference.provisioning.doctor import Finding, Level
from inference.remote.remote_model import LOOK_TIMEOUT_S, RemoteModel
from worker.config import Config
from worker.engines.address import engines_in
from worker.engines.exchange import EngineTransport
from worker.engines.shared_token import read_token
from worker.home import Home

LOOKS = 5  # per engine: the median is reported
ANSWER_S = 30.0  # for one token of a busy engine
SLOW_MS = 20.0  # a round trip that users notice in every response: engines belong near their workers
PROMPT = "Hello"
ONE_TOKEN = Sampling(max_tokens=1, temperature=0.0)


async def engine_findings(config: Config) -> AsyncIterator[Finding]:
    """One for the model's file, and one for each engine."""
    urls, transport = engines_in(config.engines or ""), EngineTransport(read_token(config))
    try:
        path = await asyncio.to_thread(find, config.model, Home(config.home).models)
        load = partial(RemoteModel.load, path)
        for number, url in enumerate(urls):
            model = await asyncio.to_thread(load, [url], transport, str, config.context)
            try:
                if not number:
                    yield Finding("model", Level.OK, f"{model.name}, only its vocabulary and chat template are used")
                yield await _engine(url, model, transport)
            finally:
                await model.close()
    except ModelNotLoaded as error:
        yield Finding("model", Level.PROBLEM, str(error), "choose another with --model")


async def _engine(url: str, model: RemoteModel, transport: EngineTransport) -> Finding:
    await model.start()
    if model.away:
        return Finding("engine", Level.PROBLEM, f"{url}: {model.away[0]}", _todo(model.away[0]))
    took_ms = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        await transport.get(url, "/health", LOOK_TIMEOUT_S)
        took_ms.append((time.perf_counter() - began) * 1e3)
    hop_ms = statistics.median(took_ms)
    began = time.perf_counter()
    try:
        async with asyncio.timeout(ANSWER_S):
            generation = model.generate(model.tokenize(PROMPT, add_special=True, parse_special=False), ONE_TOKEN)
            await generation.stream(lambda _: None)
    except (InferenceError, TimeoutError) as error:
        reason = str(error) or f"no token within {ANSWER_S:.0f} s"
        return Finding("engine", Level.PROBLEM, f"{url}: it does not answer requests: {reason}", "see its log")
    answer_ms = (time.perf_counter() - began) * 1e3
    text = f"{url}: {model.context_length} tokens of context, {hop_ms:.1f} ms away, a token after {answer_ms:.0f} ms"
    numbers = {"hop_ms": hop_ms, "first_token_ms": answer_ms, "context_tokens": float(model.context_length)}
    if hop_ms > SLOW_MS:
        return Finding("engine", Level.WARNING, text, "move workers and engines into the same network", numbers)
    return Finding("engine", Level.OK, text, numbers=numbers)


def _todo(reason: str) -> str:
    if "token" in reason:
        return "give both the same --token-file"
    if "vocabulary" in reason:
        return "give both the same --model"
    return "start it with `firsttoken engine --listen`, and check that its address is reachable from here"
