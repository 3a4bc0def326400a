"""The argument parser of the command line: short usages, and errors that suggest what was meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable
from itertools import groupby
from typing import Any, NoReturn

from agents.config_error import did_you_mean
from worker.config import settings

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


class Help(argparse.HelpFormatter):
    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], *args: Any, **options: Any) -> None:
        every = list(actions)
        own = [action for action in every if action.dest not in SETTING_NAMES]
        super().add_usage(usage, [*own, _SOME_SETTING] if len(own) < len(every) else own, *args, **options)
