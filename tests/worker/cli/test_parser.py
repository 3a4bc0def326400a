"""Where the functions of the commands are, and what is imported for them."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import iscoroutinefunction

from worker.cli.parser import parser

HEAVY = {"aiohttp", "asyncpg", "gguf", "llama_cpp", "numpy", "pydantic"}


def parsers(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


def functions(of: argparse.ArgumentParser) -> Iterator[str]:
    return (command for each in parsers(of) if (command := each.get_default("command")))


def imported_by(*steps: str) -> list[set[str]]:
    """The heavy packages that a new process has imported after each of these modules, or lists of them."""
    code = "; ".join(f"import {step}; print(*sys.modules)" for step in steps)
    told = subprocess.check_output([sys.executable, "-c", f"import sys; {code}"], text=True)
    return [HEAVY & set(line.split()) for line in told.splitlines()]


def test_every_command_has_its_function() -> None:
    found = list(functions(parser()))
    assert len(found) > 30
    for function in found:
        module, _, name = function.rpartition(".")
        assert iscoroutinefunction(getattr(import_module(module), name)), function


def test_every_help_says_what_its_command_does_and_its_example_is_one() -> None:
    told = [each.epilog.removeprefix("Example: firsttoken ") for each in parsers(parser()) if each.epilog]
    assert all(each.description for each in parsers(parser()))
    for example in told[1:]:  # the first one is of the command itself
        assert parser().parse_args(shlex.split(example)).command
    assert len(told) > 5


def test_commands_that_compute_nothing_do_not_import_the_engine_and_help_no_server() -> None:
    computes = {"evaluate", "ingest_command", "model_commands", "policies", "upkeep", "serve", "serve_engine"}
    modules = {function.rpartition(".")[0] for function in functions(parser())}
    others = sorted(module for module in modules if module.rpartition(".")[2] not in computes)
    assert len(others) > 4
    for_help, for_commands = imported_by("worker.cli.main", ", ".join(others))
    assert for_help == set()
    assert "llama_cpp" not in for_commands


def test_a_worker_begins_its_database_and_model_before_it_imports_the_rest_but_never_what_making_models_needs() -> None:
    assert imported_by("worker.serve", "worker.serving") == [{"asyncpg", "llama_cpp", "numpy"}, HEAVY - {"gguf"}]
