"""The map is true: what it names exists, and the example request runs through it."""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent

from tests.executed import Calls, Function

ROOT = Path(__file__).resolve().parents[1]
MAP = (ROOT / "docs/ARCHITECTURE.md").read_text("utf-8")
STEP = re.compile(r"^\| `([\w/]+\.py)` `([\w.]+)` \|", re.MULTILINE)
FILE = re.compile(r"`((?:worker|agents|retrieval|inference|migrations|tests)/[\w/]*(?:\.py|/)?)`")
PACKAGES = ("inference", "retrieval", "agents", "worker")
FILES_MAX = 40  # what a newcomer reads to follow one request
LINES_SHARE_MIN = 0.5  # of the lines that the request executes; the named files have 0.6
LAST = "TurnRecord.row"  # what runs last: traces are stored after the answer
STORED_MAX_S = 60.0
START_MAX_S = 300.0  # every call goes through Python
IDLE_S = 2.0  # in which what runs beside requests comes to its turn


def functions_of(path: Path) -> set[str]:
    """Names of the functions of a module, those of classes as Class.name."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{each.name}" for each in inner}
    return found


def test_the_example_request_runs_through_functions_that_exist() -> None:
    steps = STEP.findall(MAP)
    assert len(steps) > 20
    assert [(path, name) for path, name in steps if name not in functions_of(ROOT / path)] == []


def test_every_file_that_is_named_exists() -> None:
    missing = [name for name in FILE.findall(MAP) if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()]
    assert missing == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_table_of_a_package_names_its_modules(package: str) -> None:
    """Those of its folders that are tables of their own may be named as a folder."""
    section = MAP.partition(f"\n### {package}\n")[2].partition("\n### ")[0]
    named = set(re.findall(r"`([\w/]+?)/?`", section))
    modules = (path.relative_to(ROOT / package).with_suffix("") for path in (ROOT / package).rglob("*.py"))
    lacking = [
        str(module)
        for module in modules
        if not module.name.startswith("__")
        and not any(part in named for part in (str(module), module.name, *map(str, module.parents)))
    ]
    assert lacking == []


class Executed(NamedTuple):
    """The functions that a worker executes for the example request, and those that it executes when there is none."""

    request: Collection[Function]
    beside: Collection[Function]


@pytest.fixture(scope="module")
def executed(make_home: Callable[[], Path]) -> Executed:
    calls = Calls.of_new_worker(make_home())
    try:
        ready = calls.worker.wait_until_ready(START_MAX_S)
        client = OpenAI(base_url=f"{ready['url']}/v1", api_key=ready["api_key"])
        stream_with_tool_call(client)
        calls.taken()
        time.sleep(IDLE_S)
        beside = calls.taken()
        types = [event.type for event in stream_with_tool_call(client)]
        assert types[-1] == "response.completed" and "response.function_call_arguments.done" in types
        found: set[Function] = set()
        give_up_at = time.monotonic() + STORED_MAX_S
        while time.monotonic() < give_up_at and not any(function.name == LAST for function in found):
            found.update(calls.taken())
    finally:
        calls.worker.stop()
    return Executed(found, beside)


def stream_with_tool_call(client: OpenAI) -> Sequence[ResponseStreamEvent]:
    with client.responses.create(
        model="demo-chat",
        input="what is 12 * 7",
        extra_body={"tools": [{"type": "firsttoken:calculator"}]},
        temperature=0,
        stream=True,
    ) as events:
        return list(events)


def test_the_example_request_executes_every_function_of_the_map(executed: Executed) -> None:
    called = {(function.path, function.name) for function in executed.request}
    assert [step for step in STEP.findall(MAP) if step not in called] == []


def test_most_of_what_the_example_request_executes_is_in_the_few_files_of_the_map(executed: Executed) -> None:
    named = {path for path, _ in STEP.findall(MAP)}
    lines = Counter[str]()
    for function in set(executed.request) - set(executed.beside):
        lines[function.path] += function.lines
    share = sum(lines[path] for path in named) / lines.total()
    assert len(named) <= FILES_MAX
    assert share >= LINES_SHARE_MIN, f"{share:.2f}"
