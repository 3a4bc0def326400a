"""What every test may ask for: a real, migrated Postgres and fresh tenants in it."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import settings

from migrations.embedded import EmbeddedPostgres
from migrations.embedded.errors import EmbeddedPostgresError
from migrations.embedded.placement import placement_of
from migrations.embedded.postmaster import PidFile, is_alive, is_listening
from migrations.pool import Database
from migrations.runner import migrate
from tests.disks import in_memory
from tests.margins import MARKER, Margins
from tests.serving import Worker

if TYPE_CHECKING:
    from tests.worker.tool_server import ToolServer

Owner: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

LOG_CHARS = 10_000
# Tests write some fifty databases. What they promise is about processes that die, never about machines that do: so no
# disk has to see any of it where there is memory for what is left at the end, twice.
WRITTEN_BYTES = 8 * 2**30
HOME_PREFIX = "firsttoken-test-"  # and the process that made it
# What each process that runs one of these would start anew for seconds of the processor: one process runs them all.
STARTS = {
    "server": (
        "tests/clients/",
        "tests/compliance/",
        "tests/deploy/test_grafana.py",
        "tests/pages/test_real_worker.py",
        "tests/test_life_of_a_request.py",
        "tests/worker/cli/evals/test_eval_client.py",
        "tests/worker/cli/test_stored_cases_command.py",
        "tests/worker/cli/test_suite_command.py",
        "tests/worker/test_serve.py",
    ),
    "real_worker": ("tests/real_weights/",),
}

# Each run tries the same examples, so that one that fails tells of the last change; and no time limit, as machines are
# shared. More and new ones: `make test ARGS="--hypothesis-profile explore"`.
settings.register_profile("same", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--margins", type=Path, metavar="FILE", help="write down how sure the model was, test by test")


def pytest_configure(config: pytest.Config) -> None:
    if "TMPDIR" not in os.environ and (folder := in_memory(WRITTEN_BYTES)):
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.addinivalue_line("markers", f"{MARKER}(reason): it passes whatever the model answers")
    config.addinivalue_line("markers", "long: takes minutes, or is the rest of a matrix; `make test-long` runs these")
    config.addinivalue_line("markers", "gpu: needs a GPU, if only one in software; `make test-gpu` runs these")
    config.addinivalue_line("markers", "vulkan: breaks or doubles a device of Vulkan, and no other")
    config.addinivalue_line("markers", "cpu: holds on CPUs alone, where `make test-gpu` does not ask")
    config.addinivalue_line("markers", "vllm: needs a vLLM server; `make test-vllm` runs these")
    config.addinivalue_line("markers", "programs: runs coding agents of 340 MB; `make test-clients` runs these")
    config.addinivalue_line("markers", "screenshots: writes into docs/images; `make screenshots` runs these")
    config.pluginmanager.register(Margins(config.getoption("--margins")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Processes share the tests by file, and by start."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class ByStart(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((start for start, places in STARTS.items() if nodeid.startswith(places)), nodeid.split("::")[0])

    return ByStart(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nine thousand tests and the modules that they import stay to the end: no garbage is looked for among them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def make_empty_home() -> Iterator[Callable[[], Path]]:
    """Makes empty home folders, removed at the end.

    Not pytest's tmp_path: that is private to its owner, so under root the database would move below /var/lib.
    """
    made: list[Path] = []
    remove_left()

    def make() -> Path:
        home = Path(tempfile.mkdtemp(prefix=f"{HOME_PREFIX}{os.getpid()}-"))
        home.chmod(0o711)
        made.append(home)
        return home

    yield make
    for home in filter(Path.exists, made):
        _remove(home)


@pytest.fixture(scope="session")
async def migrated(make_empty_home: Callable[[], Path]) -> Path:
    """The data folder of a migrated database that nobody has used. What is written there need not outlive the machine:
    a commit waits for no disk, only what kills processes alone is tested with it."""
    home = make_empty_home()
    with EmbeddedPostgres(home) as server:
        await migrate(server.owner_dsn)
    data = placement_of(home).data
    with (data / "postgresql.conf").open("a") as settings:
        settings.write("fsync = off\n")
    return data


@pytest.fixture(scope="session")
def make_home(make_empty_home: Callable[[], Path], migrated: Path) -> Callable[[], Path]:
    """Makes homes with a copy of the migrated database: to create and migrate one takes ten times as long."""

    def make() -> Path:
        home = make_empty_home()
        subprocess.run(["cp", "-a", migrated, placement_of(home).data], check=True)
        return home

    return make


@pytest.fixture
def home(make_empty_home: Callable[[], Path]) -> Iterator[Path]:
    """An empty home folder of this test alone, gone with it: each gets a database of a thousand files."""
    home = make_empty_home()
    yield home
    _remove(home)


@pytest.fixture(scope="session")
def postgres(make_home: Callable[[], Path]) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(make_home()) as server:
        yield server


@pytest.fixture(scope="session")
def owner_dsn(postgres: EmbeddedPostgres) -> str:
    """The migrated database, as the owner of its tables: row-level security does not bind it."""
    return postgres.owner_dsn


@pytest.fixture(scope="session")
async def owner_pool(owner_dsn: str) -> AsyncIterator[Owner]:
    """As the owner, for tests that only need a row of theirs: to connect takes ten times as long."""
    async with asyncpg.create_pool(owner_dsn, min_size=1, max_size=1) as pool:
        yield pool


@pytest.fixture(scope="session")
async def database(postgres: EmbeddedPostgres, owner_dsn: str) -> AsyncIterator[Database]:
    """The migrated database as the worker sees it."""
    database = await Database.connect(postgres.app_dsn)
    yield database
    await database.close()


@pytest.fixture(scope="session")
def server_worker(make_home: Callable[[], Path]) -> Iterator[Worker]:
    """A real `firsttoken serve` with the bundled models and the sample documents."""
    worker = Worker(make_home())
    worker.wait_until_read()
    yield worker
    assert worker.stop() == 0


@pytest.fixture(scope="session")
def server(server_worker: Worker) -> dict[str, Any]:
    """How to reach it: url, api_key, chat_url (signs one browser in, once), ops_url, pid, version."""
    return server_worker.wait_until_ready()


@pytest.fixture(scope="session")
def mcp_server() -> Iterator[ToolServer]:
    from tests.worker.tool_server import tool_server

    with tool_server() as server:
        yield server


@pytest.fixture
def mcp(mcp_server: ToolServer) -> ToolServer:
    """An MCP server that nobody has asked yet."""
    mcp_server.calls.clear()
    mcp_server.seen.clear()
    mcp_server.let_go.clear()
    return mcp_server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the log of the worker that it talked to."""
    report = yield
    worker = getattr(item, "funcargs", {}).get("server_worker")
    if report.failed and isinstance(worker, Worker):
        report.sections.append(("log of the worker", worker.log.read_text()[-LOG_CHARS:]))
    return report


@pytest.fixture
async def tenant_id(owner_pool: Owner) -> UUID:
    """A tenant that owns nothing yet."""
    return await new_tenant(owner_pool)


@pytest.fixture
async def other_tenant_id(owner_pool: Owner) -> UUID:
    """Another tenant, who must never see what the first one has."""
    return await new_tenant(owner_pool)


async def new_tenant(owner: Owner) -> UUID:
    tenant: UUID = await owner.fetchval("select ensure_tenant($1)", f"test-{uuid4()}")
    return tenant


def remove_left() -> None:
    """Homes of processes that were killed: otherwise they would stay in memory."""
    for home in Path(tempfile.gettempdir()).glob(f"{HOME_PREFIX}*"):
        maker = home.name.removeprefix(HOME_PREFIX).partition("-")[0]
        if maker.isdigit() and not is_alive(int(maker)):
            with suppress(OSError, EmbeddedPostgresError):  # another process removes it, too, or it is another user's
                _remove(home)


def _remove(home: Path) -> None:
    """Also stops and removes the database of a worker that a test killed."""
    if (home / "postgres").exists():
        place = placement_of(home)
        if PidFile.read(place.data) is not None and is_listening(place):
            with EmbeddedPostgres(home):
                pass
        shutil.rmtree(place.root)
    shutil.rmtree(home)
