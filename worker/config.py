"""Every setting of the worker, and the only place where the process environment is read.

A setting is one field of `Config`: the field `port` is the flag `--port` and the variable FIRSTTOKEN_PORT. A flag wins
over a variable, a variable over the default; an empty variable counts as not set.
"""

from __future__ import annotations

import argparse
import os
import types
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

PREFIX = "FIRSTTOKEN_"
PROJECT = Path(__file__).resolve().parent.parent
# Variables that other software made customary; the prefixed one wins.
CUSTOMARY = {"database_url": "DATABASE_URL"}
TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class ConfigError(ValueError):
    """A setting has a value that cannot be used; the message names the setting and says what it takes."""


def _setting(
    default: Any, help: str, *, least: float | None = None, most: float | None = None, every: bool = False
) -> Any:
    """`every`: a setting of all commands, not of `serve` alone."""
    return field(default=default, metadata={"help": help, "least": least, "most": most, "every": every})


@dataclass(frozen=True, slots=True)
class Config:
    """Names carry units; `None` means that the worker finds the value itself, as the help text says."""

    home: Path = _setting(Path("~/.firsttoken"), "folder of the database, the secret and the local key", every=True)
    database_url: str | None = _setting(
        None, "Postgres with pgvector to use instead of the embedded one; also read from DATABASE_URL", every=True
    )
    secret: str | None = _setting(
        None,
        "signs sessions and hashes keys; set the same one on all workers of a database (default: made once in home)",
        every=True,
    )
    log_level: str = _setting("warning", "debug, info, warning or error", every=True)
    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(8080, "port to listen on; 0 takes a free one", least=0, most=65535)
    ready_file: Path | None = _setting(None, "JSON file written once the worker can answer: url, api_key, chat_url ...")
    model: Path | None = _setting(None, "chat model, a GGUF file (default: the bundled one)")
    embedder: Path | None = _setting(None, "embedding model, a GGUF file (default: the bundled one)")
    gpu_layers: int = _setting(-1, "layers of the chat model on the GPU; -1: all of them when this build can", least=-1)
    context_length: int = _setting(0, "tokens of context per stream; 0: what the model was trained for", least=0)
    streams: int = _setting(8, "generations that run at once; more of them wait in the queue", least=1, most=256)
    threads: int = _setting(0, "CPU threads of the chat model; 0: as many as this machine has cores", least=0, most=512)
    docs: Path | None = _setting(
        PROJECT / "docs", "folder read into the sample knowledge base `docs` at start; '' for none"
    )
    turns_max: int = _setting(64, "turns in progress at once; more get 429", least=1)
    tenant_turns_max: int = _setting(32, "turns in progress at once of one tenant; more get 429", least=1)
    body_bytes_max: int = _setting(4 * 2**20, "largest request body", least=1024)
    drain_s: float = _setting(
        20.0, "seconds that running answers get to finish when the worker is asked to stop", least=0
    )
    trace_days: float = _setting(7.0, "days that traces are kept", least=0.01)
    jwt_secret: str | None = _setting(None, "accept JWTs signed with this HS256 secret (32 characters or more)")
    jwt_jwks_url: str | None = _setting(None, "accept RS256 and ES256 JWTs signed with a key of this JWKS document")
    jwt_issuer: str | None = _setting(None, "issuer (`iss`) that a JWT must name")
    jwt_audience: str | None = _setting(None, "audience (`aud`) that a JWT must name")
    jwt_tenant_claim: str = _setting("sub", "claim of a JWT that names its tenant")

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", self.home.expanduser().absolute())
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError(f"--log-level must be debug, info, warning or error, not {self.log_level!r}")
        if self.jwt_secret is not None and len(self.jwt_secret) < 32:
            raise ConfigError("--jwt-secret must have 32 characters or more: a shorter one can be guessed")
        if self.jwt_jwks_url is not None and not self.jwt_jwks_url.startswith(("https://", "http://")):
            raise ConfigError(f"--jwt-jwks-url must be an http(s) URL, not {self.jwt_jwks_url!r}")


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def add_settings(parser: argparse.ArgumentParser, *, only_every: bool = False) -> None:
    """Give the parser one flag per setting; unset flags stay out of the namespace."""
    group = parser.add_argument_group("settings")
    for setting in fields(Config):
        if only_every and not setting.metadata["every"]:
            continue
        text = f"{setting.metadata['help']} [{variable_of(setting.name)}{_default_note(setting)}]"
        group.add_argument(
            flag_of(setting.name),
            default=argparse.SUPPRESS,
            metavar=setting.name.rsplit("_", 1)[-1].upper(),
            help=text.replace("%", "%%"),
        )


def _default_note(setting: Field[Any]) -> str:
    return "" if setting.default is None else f"; {setting.default}"


def load(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Config:
    """Merge flags over the environment over defaults. Raises ConfigError."""
    environment = os.environ if environment is None else environment
    types_of = get_type_hints(Config)
    values: dict[str, Any] = {}
    for setting in fields(Config):
        name = setting.name
        variables = [variable_of(name), *([CUSTOMARY[name]] if name in CUSTOMARY else [])]
        source, text = next(((v, environment[v]) for v in variables if environment.get(v)), (flag_of(name), None))
        if name in flags:
            source, text = flag_of(name), flags[name]
        if text is not None:
            values[name] = _parse(source, text, types_of[name], setting.metadata)
    return Config(**values)


def _parse(source: str, text: str, kind: Any, metadata: Mapping[str, Any]) -> Any:
    if get_origin(kind) is types.UnionType:  # `X | None`: an empty value takes the default away
        if text == "":
            return None
        kind = next(part for part in get_args(kind) if part is not types.NoneType)
    if kind is bool:
        if text.lower() not in TRUTHS:
            raise ConfigError(f"{source} must be true or false, not {text!r}")
        return TRUTHS[text.lower()]
    try:
        value = kind(text)
    except ValueError:
        raise ConfigError(f"{source} must be a number, not {text!r}") from None
    least, most = metadata["least"], metadata["most"]
    if (least is not None and not value >= least) or (most is not None and not value <= most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ConfigError(f"{source} must be {bounds}, not {text}")
    return value


def prepare_process() -> None:
    """Settings that llama.cpp reads from the environment: call before anything imports it.

    With OpenMP's default, threads that wait for work spin, which costs a small machine most of its speed. And a crash
    in native code must not start a debugger on the process.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
