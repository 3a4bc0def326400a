"""`firsttoken doctor`, `migrate` and `reload`: whether this machine is ready to serve, one line per finding; and how
the database, or a running worker, is brought up to date."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from functools import partial

import orjson

from agents.definition import InvalidAgents
from inference.embedding.registry import EmbedderFile
from inference.errors import InferenceError, ModelNotLoaded
from inference.generation import Sampling
from inference.provisioning import machine
from inference.provisioning.calibration import Calibrations
from inference.provisioning.catalogue import find
from inference.provisioning.doctor import Finding, Level, examine
from inference.provisioning.fit import CannotServe, here
from inference.provisioning.memory import in_words
from inference.remote.remote_model import LOOK_TIMEOUT_S, RemoteModel
from migrations.embedded import EmbeddedPostgresError
from migrations.pool import UnsafeRole
from migrations.runner import MigrationError, migrate
from migrations.runner import examine as examine_database
from worker.auth.secret import read_secret
from worker.config import Config, unknown_variables
from worker.database import open_owner_dsn, open_replica, opened, owner_setting
from worker.engines.engine_config import embedder_files, engine_config, read_token
from worker.engines.exchange import EngineTransport
from worker.engines.model_file import InvalidModels, read_models
from worker.engines.model_names import check_files
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.address import bind, engines_in
from worker.lifecycle.agent_files import read_agents

# The embedded database keeps a gigabyte of write-ahead log; with less than that it stops while people chat.
DISK_BYTES_MIN = 2 * 10**9


async def doctor(config: Config, *, as_json: bool) -> None:
    """Raises StartError, and so ends with exit code 1, if there is a problem."""
    findings = []
    async for finding in _findings(config):
        findings.append(finding)
        if not as_json:
            print(_line(finding), flush=True)
    problems = [finding.name for finding in findings if finding.level is Level.PROBLEM]
    if as_json:
        report = {"ok": not problems, "findings": [asdict(finding) for finding in findings]}
        print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    if problems:
        raise StartError(f"not ready to serve because of {', '.join(dict.fromkeys(problems))}")


async def _findings(config: Config) -> AsyncIterator[Finding]:
    """Quick checks first: the engine's ends with a measurement of seconds."""
    if unknown := unknown_variables():
        yield Finding("settings", Level.WARNING, ". ".join(unknown), "docs/settings.md lists all variables")
    yield (disk := _disk(config))
    if disk.level is Level.PROBLEM:  # without a home, everything that is in it would be a problem too
        return
    if port := _port(config):
        yield port
    yield await _looked(_secret, config, "secret", "see docs/operations.md, Backup")
    yield await _looked(_agents, config, "agents", "fix the file, or choose another one with --agents")
    yield await _database(config)
    yield await _looked(_embedders, config, "embedders", "choose others with --embedder and --embedders")
    if config.engines is not None:  # the engines' machines have the memory and processors that matter
        async for of_engine in engine_findings(config):
            yield of_engine
        return
    try:
        if file := read_models(config):
            own = {name: table.applied(config) for name, table in file.models.items() if not table.engines}
            yield await asyncio.to_thread(models_finding, own)
            if not own:
                return  # all models are served elsewhere
            config = next(iter(own.values()))
        engine = examine(engine_config(config), Calibrations(Home(config.home).calibrations))
    except (InvalidModels, StartError) as error:
        yield Finding("models", Level.PROBLEM, str(error), "fix the file, or choose another one with --models")
        return
    except ModelNotLoaded as error:
        yield Finding("model", Level.PROBLEM, str(error), "choose another with --model")
        return
    while (finding := await asyncio.to_thread(next, engine, None)) is not None:
        yield finding


def _disk(config: Config) -> Finding:
    try:
        Home(config.home).prepare()
    except StartError as error:
        return Finding("disk", Level.PROBLEM, str(error), "choose another folder with --home")
    free = machine.disk_free(config.home)
    text, numbers = f"{in_words(free)} free in {config.home}", {"disk_free_bytes": free}
    if free < DISK_BYTES_MIN:
        return Finding(
            "disk", Level.WARNING, text, f"free some space: at least {in_words(DISK_BYTES_MIN)} should be free", numbers
        )
    return Finding("disk", Level.OK, text, numbers=numbers)


def _port(config: Config) -> Finding | None:
    try:
        bind(config.host, config.port).close()
    except StartError as error:
        todo = "correct --host and --port, unless it is the worker of this home that listens there"
        return Finding("port", Level.WARNING, str(error), todo)
    return None


async def _looked(look: Callable[[Config], Finding], config: Config, name: str, todo: str) -> Finding:
    """What is found in files that settings name. If that is a problem, there is something to do."""
    try:
        return await asyncio.to_thread(look, config)
    except (StartError, InvalidAgents, ModelNotLoaded, OSError) as error:
        return Finding(name, Level.PROBLEM, str(error), todo)


def _secret(config: Config) -> Finding:
    read_secret(config, Home(config.home))
    return Finding("secret", Level.OK, "it can be read")


def _agents(config: Config) -> Finding:
    return Finding("agents", Level.OK, ", ".join(read_agents(config).agents) or "none")


async def _database(config: Config) -> Finding:
    kind = "given" if config.database_url else "embedded"
    try:
        async with open_owner_dsn(config) as (owner_dsn, app_dsn):
            server = await examine_database(owner_dsn, setting=owner_setting(config))
            if server.lacks is not None:  # an empty one does not have the role of workers
                async with opened(config, owner_dsn, app_dsn) as database, open_replica(config, database):
                    pass
    except (EmbeddedPostgresError, MigrationError, StartError, UnsafeRole, OSError) as error:
        return Finding("database", Level.PROBLEM, " ".join(str(error).split()), "see docs/operations.md, Database")
    behind = f", {server.lacks} migrations behind: the next start applies them" if server.lacks else ""
    return Finding("database", Level.OK, f"{kind} Postgres {server.major} with pgvector {server.pgvector}{behind}")


def _embedders(config: Config) -> Finding:
    files = [EmbedderFile.tried(path) for path in embedder_files(config)]
    names = [f"{file.name} with {file.dimensions} dimensions" for file in files]
    return Finding("embedders", Level.OK, ", ".join(names), numbers={"embedders": len(files)})


def models_finding(configs: Mapping[str, Config]) -> Finding:
    """Each model by itself, and whether all of them fit into memory together. The checks that follow are of the
    first.
    """
    needs: dict[str, int] = {}
    for name, config in configs.items():
        try:
            allowance = here(engine_config(config))
        except (ModelNotLoaded, CannotServe) as error:
            return Finding("models", Level.PROBLEM, f"{name}: {error}", "fix its table in models.toml")
        needs[name], room = allowance.need.total + allowance.need.parked_max, allowance.room
    listed = ", ".join(f"{name} {in_words(size)}" for name, size in needs.items())
    numbers = {f"{name}_bytes": float(size) for name, size in needs.items()}
    if needs and sum(needs.values()) > room.host + room.gpu:
        text = f"{listed}: together they do not fit into memory, so they replace each other; {room}"
        return Finding("models", Level.WARNING, text, "load fewer at startup, or give them less context", numbers)
    return Finding("models", Level.OK, listed or "all of them run on remote engines", numbers=numbers)


def _line(finding: Finding) -> str:
    todo = f"\n{'':<20} -> {finding.todo}" if finding.todo else ""
    text = finding.text.replace("\n", f"\n{'':<20}")
    return f"{finding.level.value:<8} {finding.name:<10} {text}{todo}"


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


async def migrate_database(config: Config) -> None:
    Home(config.home).prepare()
    async with open_owner_dsn(config) as (owner_dsn, _):
        applied = await migrate(owner_dsn, setting=owner_setting(config))
    print("\n".join(f"applied {version}" for version in applied) or "the database is up to date")


async def reload_models(config: Config) -> None:
    """Mistakes are reported here: the worker would only log them. Raises StartError, InvalidModels, InvalidAgents."""
    models = await asyncio.to_thread(read_models, config)
    if models is None:
        raise StartError("there is no models.toml in the home folder (--models), so there is nothing to reload")
    await asyncio.to_thread(check_files, config)
    try:
        ready = orjson.loads(await asyncio.to_thread(Home(config.home).ready_file.read_bytes))
        os.kill(int(ready["pid"]), signal.SIGUSR1)
    except (FileNotFoundError, ProcessLookupError):
        raise StartError(
            "no worker is running with this home folder; the next one reads models.toml when it starts"
        ) from None
    except (PermissionError, ValueError, TypeError, KeyError) as error:
        raise StartError(f"the worker of this home folder cannot be signalled: {error}") from None
    print(f"The worker at {ready['url']} is reloading: {', '.join(models.models)}. Its log says when they are ready.")
