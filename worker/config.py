"""All settings of the worker; the only module that reads the process environment.

A setting is one field of `Config`: the field `port` is the flag `--port` and the variable FIRSTTOKEN_PORT. A flag takes
precedence over a variable, a variable over the default; an empty variable counts as not set. Groups of settings are
declared beside what they configure. `make docs` writes docs/settings.md from here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

from agents.config_error import nearest
from agents.origin import origins_of
from inference.attention import QUANTISED
from worker.auth.auth_settings import Cors, SignOnSettings, TokenSettings
from worker.edge.limit_settings import LimitSettings
from worker.engines.engine_settings import ComputationSettings, MemorySettings, ModelSettings, SeparateEngineSettings
from worker.runs.record import OBJECTIVE, USUAL_TARGETS, Targets
from worker.setting import PREFIX, ConfigError, Group, Setting, among, setting, web_address

VERSION = version("firsttoken")
PROJECT = Path(__file__).resolve().parent.parent
HOME = Path("~/.firsttoken")
# Settings of earlier versions.
REMOVED = {
    "body_s", "draft_tokens", "draft_tokens_min", "event_days", "file_mb", "gap_ms", "header_s", "semantic_cache",
    "tenant_request_mb", "tenant_traces", "tenant_turns",
}  # fmt: skip
# Variables with our prefix that are no settings: those of the setup and of deploy/haproxy.cfg, and what Kubernetes and
# Docker set in containers beside a service of our name.
NO_SETTINGS = re.compile(r"BACKEND|WHEELS|BIND|WORKER_\d+|(.+_)?(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP))(_.+)?")
WORKERS_MAX = 32  # more than the cores that a machine of the intended size has for sockets


@dataclass(frozen=True)
class ServerSettings(Group, title="Server"):
    home: Path = setting(
        HOME, "folder for the database, the secret, the local API key and downloaded models", every=True
    )
    host: str = setting("127.0.0.1", "address to listen on")
    workers: int = setting(
        1,
        "worker processes on the port; two or more share one engine in a process of its own, unless --engines "
        "names engines",
        least=1,
        most=WORKERS_MAX,
    )
    cors_origins: str | None = setting(
        None, "origins whose pages may call the API from a browser, separated by commas, or * for all", check=Cors.parse
    )
    port: int = setting(8080, "port to listen on; 0 picks a free one", least=0, most=65535)
    ready_file: Path | None = setting(
        None, "file that the worker writes as JSON once it accepts requests, with its URL, an API key and more"
    )
    log_level: str = setting(
        "warning",
        "minimum level of log messages: debug, info, warning or error",
        every=True,
        check=among("debug", "info", "warning", "error"),
    )
    mcp_origins: str | None = setting(
        None,
        "origins of MCP servers that requests may name, such as https://tools.example, separated by commas; they must "
        "have public addresses",
        check=origins_of,
    )
    mcp_private_origins: str | None = setting(
        None,
        "origins of MCP servers that requests may name, and that may be on this machine or in its networks, separated "
        "by commas",
        check=origins_of,
    )
    drain_s: float = setting(
        20.0, "seconds that running answers get to finish when the worker stops", least=0, of_engines=True
    )
    agents: Path | None = setting(
        None, "TOML file that defines the agents", fallback="agents.toml in the home folder", every=True
    )
    docs: Path | None = setting(
        PROJECT / "docs",
        "folder to ingest into the sample store `docs` at every start; empty for none",
        fallback="the documentation of this project",
    )


@dataclass(frozen=True)
class DatabaseSettings(Group, title="Database"):
    database_url: str | None = setting(
        None,
        "URL of a Postgres server with pgvector; the variable DATABASE_URL works too",
        fallback="an embedded server in the home folder",
        every=True,
        secret=True,
        also="DATABASE_URL",
    )
    database_direct_url: str | None = setting(
        None,
        "URL of the server itself if --database-url points to a pooler such as pgbouncer in transaction mode; for "
        "migrations, locks and notifications",
        fallback="none, --database-url is the server itself",
        every=True,
        secret=True,
        needs="database_url",
    )
    database_replica_url: str | None = setting(
        None,
        "URL of a read replica, which serves traces, latencies and the search of conversations; its data may lag "
        "behind",
        fallback="none, everything is read from the primary",
        every=True,
        secret=True,
        needs="database_url",
    )
    database_connections: int = setting(
        8, "maximum number of database connections per worker, besides the one for notifications", least=1, most=100
    )
    secret: str | None = setting(
        None,
        "secret that signs sessions and hashes API keys; must be the same for all workers on a database",
        fallback="generated and kept in the home folder",
        every=True,
        secret=True,
    )
    secret_before: str | None = setting(
        None,
        "second secret that is accepted but signs nothing: the one that --secret replaces, or that will replace it",
        every=True,
        secret=True,
    )


def _headers(text: str) -> dict[str, str]:
    pairs = [pair.split("=", 1) for pair in text.split(",") if pair.strip()]
    if any(len(pair) != 2 or not pair[0].strip() for pair in pairs):
        raise ValueError("must be name=value, separated by commas")
    return {name.strip(): value.strip() for name, value in pairs}


@dataclass(frozen=True)
class TelemetrySettings(Group, title="Telemetry"):
    targets: str = setting(
        USUAL_TARGETS,
        "latency targets by surface: milliseconds to the first token / milliseconds per token after it",
        check=Targets.parse,
    )
    objective: float = setting(
        OBJECTIVE,
        "objective for the share of answers on time; the burn rates in the metrics refer to it",
        least=0.5,
        most=0.9999,
    )
    trace_days: float = setting(7.0, "days for which traces are kept", least=0.01)
    audit_days: float = setting(365.0, "days for which the audit log is kept", least=1)
    otlp_endpoint: str | None = setting(
        None,
        "URL of an OpenTelemetry collector that receives all traces and metrics, by OTLP over HTTP",
        check=web_address,
        also="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_headers: str | None = setting(
        None,
        "HTTP headers for that collector: name=value, separated by commas",
        secret=True,
        check=_headers,
        also="OTEL_EXPORTER_OTLP_HEADERS",
    )

    @property
    def otlp_header_map(self) -> dict[str, str]:
        return _headers(self.otlp_headers or "")


@dataclass(frozen=True)
class Config(
    ServerSettings,
    DatabaseSettings,
    ModelSettings,
    SeparateEngineSettings,
    ComputationSettings,
    MemorySettings,
    LimitSettings,
    TelemetrySettings,
    TokenSettings,
    SignOnSettings,
):
    """Names carry units. `None`: the worker determines the value itself, as `fallback` says, or there is none."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "home", self.home.expanduser().absolute())
        except RuntimeError:
            raise ConfigError(f"--home {self.home}: no home directory is known for that user; give a path") from None
        for each in settings():
            each.check(self)
        if self.kv_type in QUANTISED and self.flash_attention == "off":
            raise ConfigError(f"--kv-type {self.kv_type} needs flash attention: leave out --flash-attention off")


@cache  # every command calls this more than a hundred times, and reading the type hints takes milliseconds
def settings() -> tuple[Setting, ...]:
    """All settings, in the order of their groups."""
    hints, groups = get_type_hints(Config), [each for each in Config.__bases__ if issubclass(each, Group)]
    return tuple(Setting.of(each, hints[each.name], group) for group in groups for each in fields(group))


def load(flags: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Config:
    """Merge flags over the environment over defaults. Raises ConfigError."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for each in settings():
        variable = next((name for name in each.variables if environment.get(name)), None)
        if each.name in flags:
            values[each.name] = each.parse(each.flag, flags[each.name])
        elif variable is not None:
            values[each.name] = each.parse(variable, environment[variable])
    return Config(**values)


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """A warning about each variable in the environment that looks like a setting and is none."""
    environment = os.environ if environment is None else environment
    known = {each.name for each in settings()}
    warnings = []
    for variable in sorted(environment):
        written = variable.removeprefix(PREFIX)
        name = written.lower()
        if written == variable or name in known or not environment[variable] or NO_SETTINGS.fullmatch(written):
            continue
        meant = None if name in REMOVED else nearest(name, known)
        why = f"; did you mean {PREFIX}{meant.upper()}?" if meant else " any more" if name in REMOVED else ""
        warnings.append(f"{variable} has no effect: there is no such setting{why}")
    return warnings


def prepare_process() -> None:
    """Set the variables that llama.cpp and numpy read. Call this before anything imports them.

    By default, OpenMP's threads spin at barriers for some 15 ms, which costs a small machine most of its speed where
    another program uses one of its cores. Yet the event loop and clients on the same machine hold a compute thread up
    for half a millisecond per token: who sleeps then is woken at several barriers of each step. A spin of 1 to 5 ms,
    depending on the processor, lasts longer than they take. A crash in native code must not attach a debugger to the
    process.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    # Behind a product of vectors, numpy's threads spin for the 100 ms in which the engine reads the question.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
