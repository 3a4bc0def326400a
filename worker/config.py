"""All settings of the worker; the only module that reads the process environment.

A setting is one field of `Config`: the field `port` is the flag `--port` and the variable FIRSTTOKEN_PORT. A flag takes
precedence over a variable, a variable over the default; an empty variable counts as not set.
`make docs` writes docs/settings.md from here.
"""

from __future__ import annotations

import argparse
import os
import types
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from inference.attention import AUTO, FLASH, KV_TYPES, LAYOUTS, QUANTISED
from inference.speculative.draft_length import DRAFT_TOKENS_MAX
from inference.weight_placement import GPU, KV_PLACES, LAYER, LOAD_MODES, Split
from worker import goodput
from worker.cors import Cors
from worker.engines.address import Address, engines_in
from worker.goodput import REFUSE, WAIT
from worker.model_aliases import ModelAliases

VERSION = version("firsttoken")
PREFIX = "FIRSTTOKEN_"
PROJECT = Path(__file__).resolve().parent.parent
# Customary names of other software; the prefixed variable takes precedence.
CUSTOMARY = {
    "database_url": "DATABASE_URL",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp_headers": "OTEL_EXPORTER_OTLP_HEADERS",
}
HOME = Path("~/.firsttoken")
LOG_LEVELS = ("debug", "info", "warning", "error")
WORKERS_MAX = 32  # more than the cores that a machine of the intended size has for sockets
SIMILAR_MIN = 0.7  # cosine of questions; even unrelated ones reach this
HOUR_S, DAY_S = 3600.0, 86_400.0  # in an hour, a laptop with 5 tokens per second fills a context of 16,384
JWT_SECRET_CHARS_MIN = 32  # an HS256 key shorter than its hash is open to brute force


class ConfigError(ValueError):
    """A setting has a value that cannot be used; the message names the setting and says what it takes."""


class Group(StrEnum):
    """What a setting is for: the headings of `--help` and of docs/settings.md, in this order."""

    SERVER = "Server"
    DATABASE = "Database"
    MODELS = "Models"
    ENGINES = "Separate engines"
    COMPUTATION = "Computation"
    MEMORY = "Memory"
    LIMITS = "Limits"
    TELEMETRY = "Telemetry"
    JWT = "JSON Web Tokens"
    OIDC = "Single sign-on (OpenID Connect)"


@dataclass(frozen=True, slots=True)
class About:
    """What users read about a setting, and its bounds.

    `fallback` describes the behaviour without a value, where the default is computed. `every`: all commands take the
    setting, not only `serve`.
    """

    group: Group
    help: str
    fallback: str | None = None
    least: float | None = None
    most: float | None = None
    every: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """Names carry units; `None` means that the worker determines the value itself, as `About.fallback` says."""

    home: Annotated[
        Path,
        About(Group.SERVER, "folder for the database, the secret, the local API key and downloaded models", every=True),
    ] = HOME
    host: Annotated[str, About(Group.SERVER, "address to listen on")] = "127.0.0.1"
    workers: Annotated[
        int,
        About(
            Group.SERVER,
            "worker processes on the port; two or more share one engine in a process of its own, unless --engines"
            " names engines",
            least=1,
            most=WORKERS_MAX,
        ),
    ] = 1
    cors_origins: Annotated[
        str | None,
        About(
            Group.SERVER,
            "origins whose pages may call the API from a browser, separated by commas, or * for all",
            fallback="none",
        ),
    ] = None
    port: Annotated[int, About(Group.SERVER, "port to listen on; 0 picks a free one", least=0, most=65535)] = 8080
    ready_file: Annotated[
        Path | None,
        About(
            Group.SERVER,
            "file that the worker writes as JSON once it accepts requests, with its URL, an API key and more",
        ),
    ] = None
    log_level: Annotated[
        str, About(Group.SERVER, "minimum level of log messages: debug, info, warning or error", every=True)
    ] = "warning"
    drain_s: Annotated[
        float, About(Group.SERVER, "seconds that running answers get to finish when the worker stops", least=0)
    ] = 20.0
    agents: Annotated[
        Path | None,
        About(Group.SERVER, "TOML file that defines the agents", fallback="agents.toml in the home folder", every=True),
    ] = None
    docs: Annotated[
        Path | None,
        About(
            Group.SERVER,
            "folder to ingest into the sample store `docs` at every start; empty for none",
            fallback="the documentation of this project",
        ),
    ] = PROJECT / "docs"
    database_url: Annotated[
        str | None,
        About(
            Group.DATABASE,
            "URL of a Postgres server with pgvector; the variable DATABASE_URL works too",
            fallback="an embedded server in the home folder",
            every=True,
        ),
    ] = field(default=None, repr=False)  # it may contain a password
    database_direct_url: Annotated[
        str | None,
        About(
            Group.DATABASE,
            "URL of the server itself if --database-url points to a pooler such as pgbouncer in transaction mode;"
            " for migrations, locks and notifications",
            fallback="none, --database-url is the server itself",
            every=True,
        ),
    ] = field(default=None, repr=False)
    database_replica_url: Annotated[
        str | None,
        About(
            Group.DATABASE,
            "URL of a read replica, which serves traces, latencies and the search of conversations; its data may "
            "lag behind",
            fallback="none, everything is read from the primary",
            every=True,
        ),
    ] = field(default=None, repr=False)
    database_connections: Annotated[
        int,
        About(
            Group.DATABASE,
            "maximum number of database connections per worker, besides the one for notifications",
            least=1,
            most=100,
        ),
    ] = 8
    secret: Annotated[
        str | None,
        About(
            Group.DATABASE,
            "secret that signs sessions and hashes API keys; must be the same for all workers on a database",
            fallback="generated and kept in the home folder",
            every=True,
        ),
    ] = field(default=None, repr=False)
    secret_before: Annotated[
        str | None,
        About(
            Group.DATABASE,
            "second secret that is accepted but signs nothing: the one that --secret replaces, or that will replace it",
            fallback="none",
            every=True,
        ),
    ] = field(default=None, repr=False)
    model: Annotated[
        Path | None,
        About(
            Group.MODELS,
            "chat model: a GGUF file or a name from `firsttoken models list`",
            fallback="the bundled demo-chat",
        ),
    ] = None
    models: Annotated[
        Path | None,
        About(
            Group.MODELS,
            "TOML file that defines several models with their aliases and routes, instead of --model",
            fallback="models.toml in the home folder; without such a file, one model",
        ),
    ] = None
    alias: Annotated[
        str | None,
        About(
            Group.MODELS,
            "aliases of models and agents, such as gpt-4o=demo-chat, separated by commas",
            fallback="none",
        ),
    ] = None
    draft: Annotated[
        Path | None,
        About(
            Group.MODELS,
            "draft model for speculative decoding: a GGUF file or a name of a model with the same vocabulary, or "
            "lookup to draft from the prompt and the answer so far",
            fallback="no speculation",
        ),
    ] = None
    draft_tokens: Annotated[
        int,
        About(
            Group.MODELS,
            "maximum length of a draft in tokens; the worker drafts fewer if fewer pay off; 0 turns speculation off",
            least=0,
            most=DRAFT_TOKENS_MAX,
        ),
    ] = 8
    draft_tokens_min: Annotated[
        int,
        About(
            Group.MODELS,
            "minimum length of a draft in tokens, even if it does not pay off; for measurements",
            least=0,
            most=DRAFT_TOKENS_MAX,
        ),
    ] = 0
    embedder: Annotated[
        Path | None,
        About(
            Group.MODELS,
            "default embedding model: a GGUF file or a model name",
            fallback="the bundled minilm-l6-v2",
            every=True,
        ),
    ] = None
    embedders: Annotated[
        str | None,
        About(
            Group.MODELS,
            "additional embedding models, separated by commas, for stores that use them",
            fallback="none",
            every=True,
        ),
    ] = None
    reranker: Annotated[
        Path | None,
        About(
            Group.MODELS,
            "cross-encoder that reranks the passages found: a GGUF file or a model name",
            fallback="none",
            every=True,
        ),
    ] = None
    answer_cache_mb: Annotated[
        int,
        About(
            Group.MODELS,
            "megabytes of host memory for reusing answers to identical prompts of the same tenant; 0 turns the "
            "cache off",
            least=0,
        ),
    ] = 0
    semantic_cache: Annotated[
        float,
        About(
            Group.MODELS,
            "cosine similarity of two questions of the same tenant, after the same conversation, from which they "
            "share an answer; takes half of --answer-cache-mb; choose it with `firsttoken eval cache`; 0 turns it"
            " off",
            least=0,
            most=1,
        ),
    ] = 0.0
    hub: Annotated[str, About(Group.MODELS, "URL of the model hub that `firsttoken models pull` downloads from")] = (
        "https://huggingface.co"
    )
    engines: Annotated[
        str | None,
        About(
            Group.ENGINES,
            "engines that compute the answers instead of this process, separated by commas: unix:PATH or an "
            "http(s) URL each; the worker then reads only the vocabulary from --model",
            fallback="none, the worker computes the answers itself",
        ),
    ] = None
    listen: Annotated[
        str | None,
        About(
            Group.ENGINES,
            "address on which `firsttoken engine` listens: unix:PATH or HOST:PORT",
            fallback="the socket engine.sock in the home folder",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        About(
            Group.ENGINES,
            "file with the token that an engine shares with its workers; required if the engine listens on a network",
            fallback="none",
        ),
    ] = None
    engine_token: Annotated[
        str | None,
        About(Group.ENGINES, "the token itself, instead of the file; best set as the variable", fallback="none"),
    ] = field(default=None, repr=False)
    threads: Annotated[
        int,
        About(
            Group.COMPUTATION,
            "most CPU threads for a step of the chat model; how many pay off is measured while serving; 0: all cores",
            least=0,
            most=512,
        ),
    ] = 0
    gpu_layers: Annotated[
        int, About(Group.COMPUTATION, "layers of the chat model on the GPU; -1 for all that fit", least=-1)
    ] = -1
    kv_place: Annotated[
        str,
        About(
            Group.COMPUTATION,
            "memory for the KV cache of GPU layers: gpu, or host, which leaves room for more layers but computes "
            "their attention on the CPU",
        ),
    ] = GPU
    gpu_split: Annotated[
        str,
        About(
            Group.COMPUTATION,
            "how a model is split among several GPUs: layer, row (CUDA only), none (everything on the first GPU),"
            " or with proportions as in layer:3,1",
        ),
    ] = LAYER
    load_mode: Annotated[
        str,
        About(
            Group.COMPUTATION,
            "how a model file is loaded: mmap, mlock (mapped and never swapped out), read (copied), or auto",
        ),
    ] = AUTO
    kv_layout: Annotated[
        str,
        About(
            Group.COMPUTATION, "layout of the KV cache: streams, unified, or auto for the faster one on this machine"
        ),
    ] = AUTO
    flash_attention: Annotated[
        str, About(Group.COMPUTATION, "flash attention: on, off, or auto for whichever is faster on this machine")
    ] = AUTO
    gap_ms: Annotated[
        int,
        About(
            Group.COMPUTATION,
            "target for the milliseconds between two tokens of an answer while prompts are prefilled",
            least=1,
        ),
    ] = 100
    memory_mb: Annotated[
        int | None,
        About(
            Group.MEMORY,
            "megabytes that models and conversations may take",
            fallback="most of the free memory",
            least=1,
        ),
    ] = None
    context: Annotated[
        int,
        About(
            Group.MEMORY,
            "maximum tokens per conversation; 0 for the model's own limit, at most 8192, less if memory is short",
            least=0,
        ),
    ] = 0
    streams: Annotated[
        int | None,
        About(
            Group.MEMORY,
            "generations that run at once; others wait in the queue",
            fallback="8, fewer if memory is short",
            least=1,
            most=128,
        ),
    ] = None
    resident: Annotated[
        int | None,
        About(
            Group.MEMORY,
            "conversations kept in the KV cache in addition to the running ones",
            fallback="8, fewer if memory is short",
            least=0,
            most=128,
        ),
    ] = None
    kv_type: Annotated[
        str,
        About(
            Group.MEMORY,
            "type of keys and values: f16, q8_0 (half the memory), q4_0 (a quarter, worse answers), or auto for "
            "f16 if it fits; all but f16 need flash attention",
        ),
    ] = AUTO
    parked_mb: Annotated[
        int | None,
        About(
            Group.MEMORY,
            "megabytes of host memory for conversations that left the KV cache; 0 keeps none",
            fallback="512, more for large models, less if memory is short",
            least=0,
        ),
    ] = None
    kv_disk_mb: Annotated[
        int,
        About(
            Group.MEMORY,
            "megabytes of disk for conversations that do not fit in host memory, kept across restarts; 0 keeps none",
            least=0,
        ),
    ] = 2048
    queue: Annotated[
        int,
        About(
            Group.LIMITS, "maximum number of generations in the queue; beyond that, requests get status 429", least=1
        ),
    ] = 64
    turns: Annotated[
        int, About(Group.LIMITS, "maximum number of turns in progress; beyond that, requests get status 429", least=1)
    ] = 64
    tenant_turns: Annotated[
        int,
        About(
            Group.LIMITS,
            "maximum number of turns in progress per tenant, with as many of the class batch in addition; beyond "
            "that, requests get status 429",
            least=1,
        ),
    ] = 32
    answer_tokens: Annotated[
        int | None,
        About(
            Group.LIMITS,
            "maximum number of tokens of an answer, all steps of its agent together",
            fallback="as many as the context holds",
            least=1,
        ),
    ] = None
    answer_s: Annotated[
        float,
        About(
            Group.LIMITS,
            "seconds after which an answer is cut off, with its wait in the queue",
            least=1,
            most=DAY_S,
        ),
    ] = HOUR_S
    late: Annotated[
        str,
        About(
            Group.LIMITS,
            "what happens to a request that is predicted to miss the TTFT target of its surface, unless its "
            "header says: refuse or wait",
        ),
    ] = WAIT
    background: Annotated[
        int,
        About(Group.LIMITS, "background responses in progress at once; 0 leaves all of them to other workers", least=0),
    ] = 4
    batch_lines: Annotated[
        int,
        About(Group.LIMITS, "batch lines in progress at once; 0 leaves all batches to other workers", least=0),
    ] = 4
    body_bytes: Annotated[int, About(Group.LIMITS, "maximum size of a request body in bytes", least=1024)] = 4 * 2**20
    file_mb: Annotated[int, About(Group.LIMITS, "maximum size of an uploaded file in megabytes", least=1)] = 64
    request_mb: Annotated[
        int,
        About(
            Group.LIMITS,
            "megabytes of buffered requests (bodies, files, waiting messages); beyond that, requests get status 429",
            least=1,
        ),
    ] = 256
    tenant_request_mb: Annotated[
        int,
        About(Group.LIMITS, "megabytes of buffered requests per tenant; beyond that, requests get status 429", least=1),
    ] = 128
    connections: Annotated[
        int | None,
        About(
            Group.LIMITS,
            "maximum number of open connections; beyond that, a new one replaces the one that has been idle longest",
            fallback="256 less than the limit of open files (ulimit -n), at most 4096",
            least=1,
        ),
    ] = None
    address_connections: Annotated[
        int | None,
        About(
            Group.LIMITS,
            "maximum number of open connections per address; behind a reverse proxy all have the same address",
            fallback="half of --connections",
            least=1,
        ),
    ] = None
    header_s: Annotated[
        float, About(Group.LIMITS, "seconds within which the headers of a request must arrive", least=0.1)
    ] = 10.0
    body_s: Annotated[
        float,
        About(
            Group.LIMITS,
            "seconds that the body of a request may pause; it must also arrive at 32 KiB per second on average",
            least=0.1,
        ),
    ] = 15.0
    tenant_files_mb: Annotated[
        int, About(Group.LIMITS, "maximum total size of the uploaded files of a tenant in megabytes", least=1)
    ] = 1024
    targets: Annotated[
        str,
        About(
            Group.TELEMETRY,
            "latency targets by surface: milliseconds to the first token / milliseconds per token after it",
        ),
    ] = goodput.USUAL
    objective: Annotated[
        float,
        About(
            Group.TELEMETRY,
            "objective for the share of answers on time; the burn rates in the metrics refer to it",
            least=0.5,
            most=0.9999,
        ),
    ] = goodput.OBJECTIVE
    trace_days: Annotated[float, About(Group.TELEMETRY, "days for which traces are kept", least=0.01)] = 7.0
    tenant_traces: Annotated[
        int,
        About(
            Group.TELEMETRY,
            "maximum number of traces kept per tenant, about 5 KB each; the oldest are deleted first",
            least=1,
        ),
    ] = 100_000
    event_days: Annotated[
        float, About(Group.TELEMETRY, "days for which a stored response can be streamed again", least=0.01)
    ] = 1.0
    audit_days: Annotated[float, About(Group.TELEMETRY, "days for which the audit log is kept", least=1)] = 365.0
    otlp_endpoint: Annotated[
        str | None,
        About(
            Group.TELEMETRY,
            "URL of an OpenTelemetry collector that receives all traces and metrics, by OTLP over HTTP",
            fallback="none",
        ),
    ] = None
    otlp_headers: Annotated[
        str | None, About(Group.TELEMETRY, "HTTP headers for that collector: name=value, separated by commas")
    ] = field(default=None, repr=False)
    jwt_secret: Annotated[str | None, About(Group.JWT, "accept tokens signed with HS256 and this secret")] = field(
        default=None, repr=False
    )
    jwt_jwks_url: Annotated[
        str | None, About(Group.JWT, "accept tokens signed with RS256 or ES256 and a key from this JWKS URL")
    ] = None
    jwt_issuer: Annotated[str | None, About(Group.JWT, "required issuer (iss) of a token")] = None
    jwt_audience: Annotated[str | None, About(Group.JWT, "required audience (aud) of a token")] = None
    jwt_tenant_claim: Annotated[str, About(Group.JWT, "claim of a token that names its tenant")] = "sub"

    oidc_issuer: Annotated[
        str | None, About(Group.OIDC, "URL of the OpenID Connect provider of your organisation", fallback="none")
    ] = None
    oidc_client_id: Annotated[str | None, About(Group.OIDC, "client id of this worker at the provider")] = None
    oidc_client_secret: Annotated[
        str | None, About(Group.OIDC, "client secret from the provider; public clients have none")
    ] = field(default=None, repr=False)
    oidc_tenant_claim: Annotated[str, About(Group.OIDC, "claim of the ID token that names the person's tenant")] = "sub"
    oidc_operator: Annotated[
        str | None,
        About(
            Group.OIDC,
            "claim=value of people who may see the latencies of all tenants, such as groups=ops",
            fallback="nobody",
        ),
    ] = None
    oidc_url: Annotated[
        str | None,
        About(
            Group.OIDC,
            "public URL of the worker behind a proxy; the provider redirects to its /sign-in/organisation/callback",
            fallback="the URL in the browser",
        ),
    ] = None

    @property
    def otlp_header_map(self) -> dict[str, str]:
        """Raises ValueError for anything but name=value."""
        pairs = [pair.split("=", 1) for pair in (self.otlp_headers or "").split(",") if pair.strip()]
        if any(len(pair) != 2 or not pair[0].strip() for pair in pairs):
            raise ValueError("must be name=value, separated by commas")
        return {name.strip(): value.strip() for name, value in pairs}

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", self.home.expanduser().absolute())
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        for flag, value, known in (
            ("--kv-layout", self.kv_layout, LAYOUTS),
            ("--flash-attention", self.flash_attention, FLASH),
            ("--kv-type", self.kv_type, KV_TYPES),
            ("--load-mode", self.load_mode, LOAD_MODES[1:]),
        ):
            if value not in (AUTO, *known):
                raise ConfigError(f"{flag} must be {AUTO}, {' or '.join(known)}, not {value!r}")
        if self.kv_place not in KV_PLACES:
            raise ConfigError(f"--kv-place must be {' or '.join(KV_PLACES)}, not {self.kv_place!r}")
        try:
            Split.parse(self.gpu_split)
        except ValueError as error:
            raise ConfigError(f"--gpu-split {error}") from None
        if self.late not in (REFUSE, WAIT):
            raise ConfigError(f"--late must be {REFUSE} or {WAIT}, not {self.late!r}")
        try:
            goodput.Targets.parse(self.targets)
        except ValueError as error:
            raise ConfigError(f"--targets {error}") from None
        try:
            Cors.parse(self.cors_origins)
        except ValueError as error:
            raise ConfigError(f"--cors-origins {error}") from None
        try:
            ModelAliases.parse(self.alias or "")
        except ValueError as error:
            raise ConfigError(f"--alias {error}") from None
        try:
            self.otlp_header_map  # noqa: B018 (it raises)
        except ValueError as error:
            raise ConfigError(f"--otlp-headers {error}") from None
        for flag, text, read in (("--engines", self.engines, engines_in), ("--listen", self.listen, Address.listening)):
            try:
                read(text) if text is not None else None
            except ValueError as error:
                raise ConfigError(f"{flag} {error}") from None
        if self.database_direct_url and not self.database_url:
            raise ConfigError("--database-direct-url needs --database-url, the URL of the pooler")
        if self.database_replica_url and not self.database_url:
            raise ConfigError("--database-replica-url needs --database-url, the URL of the primary")
        if self.semantic_cache and not self.answer_cache_mb:
            raise ConfigError("--semantic-cache needs --answer-cache-mb: answers are kept there")
        if 0 < self.semantic_cache < SIMILAR_MIN:
            raise ConfigError(f"--semantic-cache must be 0, or {SIMILAR_MIN:g} or more: lower ones match other topics")
        if self.file_mb > self.tenant_request_mb or self.tenant_request_mb > self.request_mb:
            raise ConfigError("--file-mb must be at most --tenant-request-mb, and that at most --request-mb")
        if self.draft_tokens_min > self.draft_tokens:
            raise ConfigError(f"--draft-tokens-min must be at most --draft-tokens, {self.draft_tokens}")
        if self.kv_type in QUANTISED and self.flash_attention == "off":
            raise ConfigError(f"--kv-type {self.kv_type} needs flash attention: leave out --flash-attention off")
        if (self.oidc_issuer is None) != (self.oidc_client_id is None):
            raise ConfigError("--oidc-issuer and --oidc-client-id must be given together")
        if self.oidc_operator is not None and not all(self.oidc_operator.partition("=")):
            raise ConfigError(f"--oidc-operator must be claim=value, not {self.oidc_operator!r}")
        if self.jwt_secret is not None and len(self.jwt_secret) < JWT_SECRET_CHARS_MIN:
            raise ConfigError(f"--jwt-secret must have {JWT_SECRET_CHARS_MIN} characters or more")
        for flag, url in (
            ("--hub", self.hub),
            ("--jwt-jwks-url", self.jwt_jwks_url),
            ("--otlp-endpoint", self.otlp_endpoint),
            ("--oidc-issuer", self.oidc_issuer),
            ("--oidc-url", self.oidc_url),
        ):
            if url is not None and not url.startswith(("https://", "http://")):
                raise ConfigError(f"{flag} must be an http(s) URL")  # not quoted: it may contain a password


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of Config as users see it: its spellings, its values and its help text."""

    name: str
    kind: type
    nullable: bool
    default: Any
    about: About

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def default_text(self) -> str | None:
        """The default in words; None if the setting has none."""
        default = f"{self.default:g}" if isinstance(self.default, float) else self.default
        return self.about.fallback or (None if default is None else str(default))

    @property
    def help(self) -> str:
        default = "" if self.default_text is None else f"; default {self.default_text}"
        return f"{self.about.help} [{self.variable}{default}]"

    def parse(self, source: str, text: str) -> Any:
        """Parse a value; `source` is the flag or variable that it came from. Raises ConfigError."""
        if self.nullable and text == "":
            return None
        try:
            value = self.kind(text)
        except ValueError:
            raise ConfigError(f"{source} must be a number, not {text!r}") from None
        least, most = self.about.least, self.about.most
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            bounds = f"at least {least:g}" if most is None else f"between {least:g} and {most:g}"
            raise ConfigError(f"{source} must be {bounds}, not {text}")
        return value


@cache  # every command calls this more than a hundred times, and reading the type hints takes milliseconds
def settings() -> tuple[Setting, ...]:
    """All settings, in the order of their groups."""
    hints = get_type_hints(Config, include_extras=True)
    return tuple(_setting(each, *get_args(hints[each.name])) for each in fields(Config))


def _setting(each: Field[Any], kind: Any, about: About) -> Setting:
    nullable = get_origin(kind) is types.UnionType
    if nullable:
        kind = next(part for part in get_args(kind) if part is not types.NoneType)
    return Setting(each.name, kind, nullable, each.default, about)


OF_ENGINES = frozenset({"model", "draft", "draft_tokens", "draft_tokens_min", "queue", "drain_s"})


def is_for_engines(name: str) -> bool:
    """Whether `firsttoken engine` takes the setting too."""
    setting = next(each for each in settings() if each.name == name)
    computes = setting.about.group in (Group.ENGINES, Group.COMPUTATION, Group.MEMORY) and name != "engines"
    return computes or name in OF_ENGINES or setting.about.every


def add_settings(parser: argparse.ArgumentParser, *, also: Collection[str] | None = None) -> None:
    """Add one flag per setting to the parser; flags that are not given stay out of the namespace.

    All settings; with `also`, only those that every command takes and those named in it.
    """
    shown = [s for s in settings() if s.about.every or also is None or s.name in also]
    for title, members in groupby(shown, key=lambda setting: setting.about.group):
        group = parser.add_argument_group(title)
        for setting in members:
            metavar = setting.name.rsplit("_", 1)[-1].upper()
            text = setting.help.replace("%", "%%")
            group.add_argument(setting.flag, default=argparse.SUPPRESS, metavar=metavar, help=text)


def load(flags: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Config:
    """Merge flags over the environment over defaults. Raises ConfigError."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for setting in settings():
        variables = [setting.variable, CUSTOMARY.get(setting.name, "")]
        variable = next((name for name in variables if environment.get(name)), None)
        if setting.name in flags:
            values[setting.name] = setting.parse(setting.flag, flags[setting.name])
        elif variable is not None:
            values[setting.name] = setting.parse(variable, environment[variable])
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
