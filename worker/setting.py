"""One setting as users see it: its spellings, its values, its help text and its bounds."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import Field, dataclass, field
from enum import StrEnum
from typing import Any, get_args, get_origin

PREFIX = "FIRSTTOKEN_"


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
    setting, not only `serve`. `check` raises ValueError with the rest of a sentence that begins with the flag.
    """

    group: Group
    help: str
    fallback: str | None = None
    least: float | None = None
    most: float | None = None
    every: bool = False
    check: Callable[[Any], object] | None = None


def setting(group: Group, default: Any, help: str, *, secret: bool = False, **about: Any) -> Any:
    """A field of the configuration, with what `About` says. The `repr` of the configuration leaves out a `secret`."""
    return field(default=default, repr=not secret, metadata={"about": About(group, help, **about)})


def among(*known: str) -> Callable[[str], None]:
    """The check of a setting that takes one of these words."""

    def check(value: str) -> None:
        if value not in known:
            raise ValueError(f"must be {', '.join(known[:-1])} or {known[-1]}, not {value!r}")

    return check


def web_address(url: str) -> None:
    if not url.startswith(("https://", "http://")):
        raise ValueError("must be an http(s) URL")  # not quoted: it may contain a password


OF_ENGINES = frozenset({"model", "lora", "draft", "queue", "drain_s"})


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: type
    nullable: bool
    default: Any
    about: About

    @classmethod
    def of(cls, each: Field[Any], kind: Any) -> Setting:
        """`kind` is the type of the field."""
        nullable = get_origin(kind) is types.UnionType
        if nullable:
            kind = next(part for part in get_args(kind) if part is not types.NoneType)
        return cls(each.name, kind, nullable, each.default, each.metadata["about"])

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def is_for_engines(self) -> bool:
        """Whether `firsttoken engine` takes it too."""
        computes = self.about.group in (Group.ENGINES, Group.COMPUTATION, Group.MEMORY) and self.name != "engines"
        return computes or self.name in OF_ENGINES or self.about.every

    @property
    def default_text(self) -> str:
        """The default in words."""
        default = f"{self.default:g}" if isinstance(self.default, float) else self.default
        return self.about.fallback or ("none" if default is None else str(default))

    @property
    def help(self) -> str:
        return f"{self.about.help} [{self.variable}; default {self.default_text}]"

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

    def check(self, value: Any) -> None:
        """Raises ConfigError."""
        try:
            if self.about.check is not None and value is not None:
                self.about.check(value)
        except ValueError as error:
            raise ConfigError(f"{self.flag} {error}") from None
