"""One setting as users see it: its spellings, its values, its help text and its bounds."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_args, get_origin

PREFIX = "FIRSTTOKEN_"


class ConfigError(ValueError):
    """A setting has a value that cannot be used; the message names the setting and says what it takes."""


@dataclass(frozen=True)
class Group:
    """Settings about one thing: a base of the configuration, whose fields are made by `setting`."""

    title: ClassVar[str]  # in `--help` and docs/settings.md
    of_engines: ClassVar[bool]  # whether `firsttoken engine` takes them too

    def __init_subclass__(cls, title: str = "", of_engines: bool = False) -> None:
        cls.title, cls.of_engines = title, of_engines


@dataclass(frozen=True, slots=True)
class About:
    """What users read about a setting, and its bounds.

    `fallback` describes the behaviour without a value, where the default is computed. `every`: all commands take the
    setting, not only `serve`; `of_engines`: whether `firsttoken engine` does, unlike its group. `also` is a variable of
    other software, and `needs` a setting without which this one does nothing. `check` raises ValueError with the rest
    of a sentence that begins with the flag.
    """

    help: str
    fallback: str | None = None
    least: float | None = None
    most: float | None = None
    every: bool = False
    of_engines: bool | None = None
    also: str = ""
    needs: str = ""
    check: Callable[[Any], object] | None = None


def setting(default: Any, help: str, *, secret: bool = False, **about: Any) -> Any:
    """A field of the configuration, with what `About` says. The `repr` of the configuration leaves out a `secret`."""
    return field(default=default, repr=not secret, metadata={"about": About(help, **about)})


def among(*known: str) -> Callable[[str], None]:
    """The check of a setting that takes one of these words."""

    def check(value: str) -> None:
        if value not in known:
            raise ValueError(f"must be {', '.join(known[:-1])} or {known[-1]}, not {value!r}")

    return check


def web_address(url: str) -> None:
    if not url.startswith(("https://", "http://")):
        raise ValueError("must be an http(s) URL")  # not quoted: it may contain a password


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: type
    nullable: bool
    default: Any
    about: About
    group: type[Group]

    @classmethod
    def of(cls, each: Field[Any], kind: Any, group: type[Group]) -> Setting:
        """`kind` is the type of the field."""
        nullable = get_origin(kind) is types.UnionType
        if nullable:
            kind = next(part for part in get_args(kind) if part is not types.NoneType)
        return cls(each.name, kind, nullable, each.default, each.metadata["about"], group)

    @property
    def flag(self) -> str:
        return _flag(self.name)

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """The first one that has a value counts."""
        return self.variable, self.about.also

    @property
    def is_for_engines(self) -> bool:
        """Whether `firsttoken engine` takes it too."""
        of_engines = self.about.of_engines
        return self.about.every or (self.group.of_engines if of_engines is None else of_engines)

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
        if text == "":
            if self.nullable:
                return None
            if self.kind is Path:  # as of an unset variable in a script, which would mean the current folder
                raise ConfigError(f"{source} must not be empty")
        try:
            value = self.kind(text)
        except ValueError:
            raise ConfigError(f"{source} must be a number, not {text!r}") from None
        try:
            self.within(value)
        except ValueError as error:
            raise ConfigError(f"{source} {error}, not {text}") from None
        return value

    def within(self, value: Any) -> None:
        """Whether a value is within its bounds. Raises ValueError with the rest of a sentence."""
        least, most = self.about.least, self.about.most
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            bounds = f"at least {least:g}" if most is None else f"between {least:g} and {most:g}"
            raise ValueError(f"must be {bounds}")

    def takes(self, value: Any) -> None:
        """Whether it takes this value, from wherever. Raises ValueError with the rest of a sentence."""
        self.within(value)
        if self.about.check is not None:
            self.about.check(value)

    def check(self, config: Group) -> None:
        """Whether its value can be used beside those of the others. Raises ConfigError."""
        value, needs = getattr(config, self.name), self.about.needs
        try:
            if self.about.check is not None and value is not None:
                self.about.check(value)
        except ValueError as error:
            raise ConfigError(f"{self.flag} {error}") from None
        if value and needs and not getattr(config, needs):
            raise ConfigError(f"{self.flag} needs {_flag(needs)}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
