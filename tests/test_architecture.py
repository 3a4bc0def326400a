"""The map is true: what it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAP = (ROOT / "docs/ARCHITECTURE.md").read_text("utf-8")
STEP = re.compile(r"^\| `([\w/]+\.py)` `([\w.]+)` \|", re.MULTILINE)
FILE = re.compile(r"`((?:worker|agents|retrieval|inference|migrations|tests)/[\w/]*(?:\.py|/)?)`")
PACKAGES = ("inference", "retrieval", "agents", "worker")


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
