"""Every setting of the worker, and the only place where the process environment is read.

A setting is one field of `Config`: the field `port` is the flag `--port` and the variable FIRSTTOKEN_PORT. A flag wins
over a variable, a variable over the default; an empty variable counts as not set.
"""

from __future__ import annotations

import argparse
import os
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from inference.attention import AUTO, FLASH, KV_TYPES, LAYOUTS
from inference.speculate import DRAFT_TOKENS_MAX
from worker import goodput

PREFIX = "FIRSTTOKEN_"
PROJECT = Path(__file__).resolve().parent.parent
# Variables that other software made customary; the prefixed one wins.
CUSTOMARY = {"database_url": "DATABASE_URL"}
LOG_LEVELS = ("debug", "info", "warning", "error")
JWT_SECRET_CHARS_MIN = 32  # an HS256 key shorter than its hash can be searched for


class ConfigError(ValueError):
    """A setting has a value that cannot be used; the message names the setting and says what it takes."""


@dataclass(frozen=True, slots=True)
class About:
    """What people read about a setting, and its bounds. `every`: all commands take it, not `serve` alone."""

    help: str
    least: float | None = None
    most: float | None = None
    every: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """Names carry units; `None` means that the worker finds the value itself, as the help text says."""

    home: Annotated[Path, About("folder of the database, the secret and the local key", every=True)] = Path(
        "~/.firsttoken"
    )
    database_url: Annotated[
        str | None, About("Postgres with pgvector to use instead of the embedded one; or DATABASE_URL", every=True)
    ] = None
    secret: Annotated[
        str | None,
        About(
            "signs sessions and hashes keys: the same for all workers of one database (default: in home)", every=True
        ),
    ] = None
    log_level: Annotated[str, About("debug, info, warning or error", every=True)] = "warning"
    embedder: Annotated[
        Path | None,
        About("default embedding model, a GGUF file or a model name (default: the bundled one)", every=True),
    ] = None
    embedders: Annotated[
        str | None,
        About("further embedding models for the stores that name them, as for --embedder, commas between", every=True),
    ] = None
    reranker: Annotated[
        Path | None,
        About("model that rereads the passages found, a GGUF file or a model name (default: none)", every=True),
    ] = None
    agents: Annotated[
        Path | None, About("agents of this worker, a TOML file (default: agents.toml in home)", every=True)
    ] = None
    host: Annotated[str, About("address to listen on")] = "127.0.0.1"
    port: Annotated[int, About("port to listen on; 0 takes a free one", least=0, most=65535)] = 8080
    ready_file: Annotated[Path | None, About("JSON file written once the worker can answer: url, api_key, ...")] = None
    model: Annotated[
        Path | None, About("chat model: a GGUF file, or a name of `firsttoken models list` (default: the bundled one)")
    ] = None
    draft: Annotated[
        Path | None,
        About("draft model for speculation, of the same vocabulary: a GGUF file or a name; or lookup (default: none)"),
    ] = None
    draft_tokens: Annotated[
        int, About("tokens drafted at most, as many as pay; 0: no speculation", least=0, most=DRAFT_TOKENS_MAX)
    ] = 8
    draft_tokens_min: Annotated[
        int,
        About("tokens drafted at least, whether that pays or not: to measure with", least=0, most=DRAFT_TOKENS_MAX),
    ] = 0
    hub: Annotated[str, About("where `firsttoken models pull` finds models")] = "https://huggingface.co"
    gpu_layers: Annotated[int, About("layers of the chat model on the GPU; -1: all that fit", least=-1)] = -1
    kv_layout: Annotated[str, About("layout of the KV cache: streams, unified, or auto: the fastest here")] = AUTO
    flash_attention: Annotated[str, About("on, off, or auto: the fastest here")] = AUTO
    kv_type: Annotated[
        str, About("keys and values as f16 or q8_0 (half the memory, needs flash attention); auto: f16 if it fits")
    ] = AUTO
    memory_mb: Annotated[
        int | None, About("megabytes that models and conversations may take (default: most of what is free)", least=1)
    ] = None
    context: Annotated[
        int, About("tokens a conversation may hold; 0: the model's own, at most 8192, less if memory lacks", least=0)
    ] = 0
    streams: Annotated[
        int | None,
        About("generations at once, more wait in the queue (default: 8, less if memory lacks)", least=1, most=128),
    ] = None
    resident: Annotated[
        int | None,
        About("conversations kept in the KV cache beside those (default: 8, less if memory lacks)", least=0, most=128),
    ] = None
    queue: Annotated[int, About("generations that may wait; one more gets 429", least=1)] = 64
    gap_ms: Annotated[
        int, About("milliseconds between two tokens to keep to, if the machine can, while prompts are read", least=1)
    ] = 100
    parked_mb: Annotated[
        int | None,
        About(
            "megabytes for conversations that left the KV cache; 0: none "
            "(default: 512, more for large models, less if memory lacks)",
            least=0,
        ),
    ] = None
    kv_disk_mb: Annotated[
        int, About("megabytes on disk for those that memory has no room for, kept over restarts; 0: none", least=0)
    ] = 2048
    threads: Annotated[int, About("CPU threads of the chat model; 0: what suits this machine", least=0, most=512)] = 0
    docs: Annotated[Path | None, About("folder of the sample knowledge base `docs`; empty: none")] = PROJECT / "docs"
    turns: Annotated[int, About("turns in progress at once; one more gets 429", least=1)] = 64
    tenant_turns: Annotated[int, About("turns in progress at once of one tenant; one more gets 429", least=1)] = 32
    background: Annotated[
        int, About("background responses made at once, the others wait; 0: leave them to other workers", least=0)
    ] = 4
    body_bytes: Annotated[int, About("largest request body", least=1024)] = 4 * 2**20
    file_mb: Annotated[int, About("largest file that may be uploaded, in MB", least=1)] = 64
    tenant_files_mb: Annotated[int, About("room for the uploaded files of one tenant, in MB", least=1)] = 1024
    drain_s: Annotated[float, About("seconds that running answers get to finish when told to stop", least=0)] = 20.0
    targets: Annotated[
        str, About("milliseconds to the first token / per token after it that answers of a surface are to keep to")
    ] = goodput.USUAL
    trace_days: Annotated[float, About("days that traces are kept", least=0.01)] = 7.0
    event_days: Annotated[float, About("days that the events of responses are kept", least=0.01)] = 1.0
    jwt_secret: Annotated[str | None, About("accept JWTs signed with this HS256 secret")] = None
    jwt_jwks_url: Annotated[str | None, About("accept RS256/ES256 JWTs signed with a key of this JWKS")] = None
    jwt_issuer: Annotated[str | None, About("issuer (iss) that a JWT must name")] = None
    jwt_audience: Annotated[str | None, About("audience (aud) that a JWT must name")] = None
    jwt_tenant_claim: Annotated[str, About("claim of a JWT that names its tenant")] = "sub"

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", self.home.expanduser().absolute())
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        for flag, value, known in (
            ("--kv-layout", self.kv_layout, LAYOUTS),
            ("--flash-attention", self.flash_attention, FLASH),
            ("--kv-type", self.kv_type, KV_TYPES),
        ):
            if value not in (AUTO, *known):
                raise ConfigError(f"{flag} must be {AUTO}, {' or '.join(known)}, not {value!r}")
        try:
            goodput.Targets.parse(self.targets)
        except ValueError as error:
            raise ConfigError(f"--targets {error}") from None
        if self.draft_tokens_min > self.draft_tokens:
            raise ConfigError(f"--draft-tokens-min must be at most --draft-tokens, {self.draft_tokens}")
        if (self.kv_type, self.flash_attention) == ("q8_0", "off"):
            raise ConfigError("--kv-type q8_0 needs flash attention: leave out --flash-attention off")
        if self.jwt_secret is not None and len(self.jwt_secret) < JWT_SECRET_CHARS_MIN:
            raise ConfigError(f"--jwt-secret must have {JWT_SECRET_CHARS_MIN} characters or more")
        for flag, url in (("--hub", self.hub), ("--jwt-jwks-url", self.jwt_jwks_url)):
            if url is not None and not url.startswith(("https://", "http://")):
                raise ConfigError(f"{flag} must be an http(s) URL, not {url!r}")


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of Config, seen from outside: how it is spelled, what it takes, what people read about it."""

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
    def help(self) -> str:
        default = "" if self.default is None else f"; default {self.default}"
        return f"{self.about.help} [{self.variable}{default}]"

    def parse(self, source: str, text: str) -> Any:
        """The value of this text; `source` is the flag or variable that it came from. Raises ConfigError."""
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


def settings() -> Iterator[Setting]:
    """All settings in the order in which people read them."""
    hints = get_type_hints(Config, include_extras=True)
    for field in fields(Config):
        kind, about = get_args(hints[field.name])
        nullable = get_origin(kind) is types.UnionType
        if nullable:
            kind = next(part for part in get_args(kind) if part is not types.NoneType)
        yield Setting(field.name, kind, nullable, field.default, about)


def add_settings(parser: argparse.ArgumentParser, *, also: Collection[str] | None = None) -> None:
    """Give the parser one flag per setting; unset flags stay out of the namespace.

    All settings, or with `also` those that every command takes and the ones named.
    """
    group = parser.add_argument_group("settings", "flag, then what it is and its environment variable")
    for setting in settings():
        if setting.about.every or also is None or setting.name in also:
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
    """Settings that llama.cpp reads from the environment: call before anything imports it.

    OpenMP's threads spin while they wait for each other, which costs a small machine most of its speed; sleeping at
    once costs a small model most of its. A short spin of some microseconds has the best of both. And a crash in native
    code must not start a debugger on the process.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
