"""Arguments of the command line: types of values, flags of settings, short usages, errors that tell what was meant."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable
from itertools import groupby
from typing import Any, NoReturn

from agents.config_error import did_you_mean
from worker.config import settings

ATTRIBUTE_KEY_MAX, ATTRIBUTE_VALUE_MAX = 64, 512  # the limits of filters


def attribute(text: str) -> tuple[str, str | int | float | bool]:
    """year=2024 is a number, draft=true is a boolean, everything else is text."""
    key, equals, value = text.partition("=")
    if not equals or not 1 <= len(key) <= ATTRIBUTE_KEY_MAX or not 1 <= len(value) <= ATTRIBUTE_VALUE_MAX:
        raise argparse.ArgumentTypeError(
            f"must be KEY=VALUE, with at most {ATTRIBUTE_KEY_MAX} and {ATTRIBUTE_VALUE_MAX} characters"
        )
    try:
        read = json.loads(value)
    except ValueError:
        return key, value
    return key, read if isinstance(read, bool | int) or (isinstance(read, float) and math.isfinite(read)) else value


def bound(text: str) -> tuple[str, int | float | str]:
    """steps=4, class=batch"""
    name, _, value = text.partition("=")
    if not value:
        raise argparse.ArgumentTypeError("must be NAME=VALUE, as in steps=4 or class=batch")
    try:
        return name, int(value) if value.isdigit() else float(value)
    except ValueError:
        return name, value


def number(least: float, most: float, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    """The type of numbers from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            if least <= (value := kind(text)) <= most:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"must be a number from {least:g} to {most:g}")

    return parse


share = number(0, 1)


def canary_name(text: str) -> str:
    from worker.telemetry.trial import NAME_PATTERN  # imports NumPy

    if not re.fullmatch(NAME_PATTERN, text):
        raise argparse.ArgumentTypeError("must be up to 64 letters, digits, hyphens and underscores")
    return text


def part(text: str) -> float:
    """A share strictly between 0 and 1."""
    if not 0 < (value := share(text)) < 1:
        raise argparse.ArgumentTypeError("must be more than 0 and less than 1")
    return value


def margin(text: str) -> tuple[str, float]:
    measure, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("must be MEASURE=SHARE")
    return measure, share(value)


SETTING_NAMES = frozenset(setting.name for setting in settings())
_SOME_SETTING = argparse.Action(["--SETTING"], dest="setting", metavar="VALUE")


class Parser(argparse.ArgumentParser):
    """The usage shows a command's own options and only mentions the settings, of which there are dozens."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": Help, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Unknown arguments of a command are its own error: its usage is the one to be shown."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [option for action in self._actions for option in action.option_strings]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(unknown[0].split('=')[0], options)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        if message == "the following arguments are required: COMMAND":  # no command was given: list them
            self.print_help(sys.stderr)
            sys.exit(2)
        super().error(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            raise argparse.ArgumentError(
                action, error.message + did_you_mean(str(value), map(str, action.choices or ()))
            ) from None


def add_settings(parser: argparse.ArgumentParser, also: Collection[str]) -> None:
    """One flag for each setting that every command takes, and for those named in `also`. Flags that are not given stay
    out of the namespace."""
    shown = [each for each in settings() if each.about.every or each.name in also]
    for title, members in groupby(shown, key=lambda setting: setting.group.title):
        group = parser.add_argument_group(title)
        for setting in members:
            metavar = setting.name.rsplit("_", 1)[-1].upper()
            text = setting.help.replace("%", "%%")
            group.add_argument(setting.flag, default=argparse.SUPPRESS, metavar=metavar, help=text)


class Help(argparse.HelpFormatter):
    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], *args: Any, **options: Any) -> None:
        every = list(actions)
        own = [action for action in every if action.dest not in SETTING_NAMES]
        super().add_usage(usage, [*own, _SOME_SETTING] if len(own) < len(every) else own, *args, **options)
