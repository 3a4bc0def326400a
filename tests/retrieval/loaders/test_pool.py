"""A file may do to the process that reads it what it likes: other files, and whoever waits for them, do not notice."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retrieval.chunking import Piece
from retrieval.chunking import pieces as pieces_of
from retrieval.errors import ReadersUnavailable, UnreadableFile
from retrieval.loaders import fork_server, formats
from retrieval.loaders.document import Section
from retrieval.loaders.fork_server import Ended, ForkServer, Reader
from retrieval.loaders.job import Job, Limits, framed
from retrieval.loaders.pool import AT_ONCE_MAX, LoaderPool, document_in, judged
from tests.retrieval.loaders import hostile
from tests.retrieval.loaders.hostile import CALM, ENDLESS
from tests.retrieval.loaders.test_docx import make_docx, paragraph
from tests.retrieval.loaders.test_pdf import make_pdf

MOST = Limits(wall_s=60, cpu_s=10)  # what no file here needs that is read as it should be
LONG = Limits(wall_s=60, cpu_s=60)  # what keeps a hostile file busy until the end of its test
ME, SOMEBODY = "me", "somebody"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def pool(loaders: LoaderPool) -> LoaderPool:
    """One for all, as in a worker: whatever a file does to it, the next one is read."""
    return loaders


@pytest.fixture
def new_pool() -> Iterator[LoaderPool]:
    with closing(LoaderPool()) as pool:
        yield pool


async def is_read(pool: LoaderPool, owner: str = ME) -> bool:
    document, _ = await pool.read(*CALM, MOST, owner=owner)
    return document == formats.load(*CALM)


def server_of(pool: LoaderPool) -> int:
    assert pool._server is not None
    return pool._server.pid


def readers_of(pool: LoaderPool) -> set[int]:
    pid = server_of(pool)
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


async def spare_of(pool: LoaderPool) -> int:
    """The reader that waits for the next file, the only one when none is read."""
    before = readers_of(pool) if pool._server else set()  # one of them reads, and may not be gone yet
    await is_read(pool)
    await until(lambda: len(readers_of(pool)) == 1 and not readers_of(pool) & before)
    (reader,) = readers_of(pool)
    return reader


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not fact():  # noqa: ASYNC110  # the system does not tell of it
            await asyncio.sleep(0.01)


async def busy(pool: LoaderPool, owner: str = ME, limits: Limits = LONG) -> asyncio.Task[object]:
    """A file whose reader does not come to its end, once it is at it."""
    task: asyncio.Task[object] = asyncio.create_task(pool.read(*ENDLESS, limits, owner=owner))
    await until(lambda: task.done() or any(seconds_of(pid) > 0.2 for pid in readers_of(pool)))
    return task


def status_of(pid: int) -> list[str]:
    """What the system tells of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def sleeps(pid: int) -> bool:
    return status_of(pid)[0] == "S"


def seconds_of(pid: int) -> float:
    """Processor time of a process."""
    try:
        fields = status_of(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a-guide.md", b"# Title\n\none\n\n## Part\n\ntwo\n"),
        ("a.txt", "Grüße".encode("cp1252") * 9),
        ("a.html", b"<title>T</title><h1>One</h1><p>text"),
        ("a.csv", b"a,b\n1,2\n"),
        ("a.py", b"def f():\n    pass\n"),
        ("a.pdf", make_pdf("A berth costs 40 euros.", "Dogs are welcome.")),
        ("a.docx", make_docx(paragraph("Fees", "berschrift1") + paragraph("text"))),
    ],
)
async def test_a_file_of_every_kind_is_read_as_its_loader_reads_it(pool: LoaderPool, name: str, data: bytes) -> None:
    document, pieces = await pool.read(Path(name), data, MOST, owner=ME, split=True)
    assert document == formats.load(Path(name), data)
    assert pieces == pieces_of(document)


async def test_what_a_loader_says_against_a_file_is_passed_on(pool: LoaderPool) -> None:
    with pytest.raises(UnreadableFile, match=r"\*\.exe, which cannot be read; supported are"):
        await pool.read(Path("setup.exe"), b"MZ", MOST, owner=ME)


async def test_a_name_that_is_no_unicode_gives_a_title_that_is(pool: LoaderPool) -> None:
    document, _ = await pool.read(Path("b\udcff-\ud800.txt"), b"text", MOST, owner=ME)
    assert document.title.encode().decode().startswith("b\ufffd")


@pytest.mark.parametrize(
    ("make", "chars"),
    [(hostile.tabs, hostile.TABS), (hostile.brackets, 200_000), (hostile.gaps, 20), (hostile.unbroken, 8_000_000)],
)
async def test_a_file_that_only_looks_like_much_work_is_read(
    pool: LoaderPool, make: Callable[[], tuple[Path, bytes]], chars: int
) -> None:
    document, pieces = await pool.read(*make(), MOST, owner=ME, split=True)
    assert len(document.text) >= chars
    assert pieces


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (hostile.nested, "memory|more work"),  # whichever limit it reaches first
        (hostile.titled, "contains no text"),
    ],
)
async def test_a_file_that_unfolds_takes_no_more_than_its_process_may(
    pool: LoaderPool, make: Callable[[], tuple[Path, bytes]], reason: str
) -> None:
    with pytest.raises(UnreadableFile, match=reason):
        await pool.read(*make(), Limits(wall_s=60, cpu_s=2, memory_bytes=400 * 2**20), owner=ME, split=True)
    assert await is_read(pool)


async def test_a_file_that_keeps_its_reader_busy_keeps_nobody_else_waiting(pool: LoaderPool) -> None:
    await is_read(pool)
    task = await busy(pool)
    for _ in range(20):
        assert await is_read(pool, SOMEBODY)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_work_on_a_file_is_limited_by_its_size(pool: LoaderPool) -> None:
    with pytest.raises(UnreadableFile, match="far more work to read than files of its size do; save it again"):
        await pool.read(*ENDLESS, Limits(wall_s=60, cpu_s=1), owner=ME)
    assert Job.of("a.html", 1000, LONG).limits.cpu_s < Job.of("a.html", 2**20, LONG).limits.cpu_s < LONG.cpu_s
    assert Job.of("a.pdf", 2**26, LONG).limits.cpu_s == LONG.cpu_s


async def test_a_reader_ends_with_its_time(pool: LoaderPool) -> None:
    reader = await spare_of(pool)
    with pytest.raises(UnreadableFile, match=r"takes longer than 0\.5 s to read; split it"):
        await pool.read(*ENDLESS, Limits(wall_s=0.5, cpu_s=60), owner=ME)
    await until(lambda: reader not in readers_of(pool))
    assert await is_read(pool)


async def test_a_reader_ends_when_nobody_waits_for_it(pool: LoaderPool) -> None:
    reader = await spare_of(pool)
    task = await busy(pool)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: reader not in readers_of(pool))
    assert await is_read(pool)


async def test_memory_is_limited(pool: LoaderPool) -> None:
    bomb = (Path("large.txt"), "a\n€".encode() * 2_000_000)
    with pytest.raises(UnreadableFile, match="memory"):
        await pool.read(*bomb, Limits(wall_s=60, cpu_s=10, memory_bytes=80 * 2**20), owner=ME)
    assert await is_read(pool)


async def test_what_comes_back_is_limited(pool: LoaderPool) -> None:
    bomb = (Path("wide.csv"), b",".join([b"a" * 60] * 200) + (b"\n" + b"1," * 200) * 1000)
    with pytest.raises(UnreadableFile, match="makes more than 1 MB of text; split it"):
        await pool.read(*bomb, Limits(wall_s=60, cpu_s=10, answer_bytes=2**20), owner=ME)


def test_a_reader_that_answers_without_an_end_is_not_listened_to() -> None:
    link, its_link = socket.socketpair()
    lease, its_lease = socket.socketpair()
    reader = Reader(link, lease)
    its_link.settimeout(60)
    with pytest.raises(UnreadableFile, match="more than 0 MB"), its_link, its_lease:
        its_link.sendall(b"x" * 2000)
        reader.run(Job.of("a.md", 0, Limits(wall_s=1, cpu_s=1, answer_bytes=1000)), b"")
    reader.close()


async def test_a_reader_that_is_killed_fails_its_own_file_only(pool: LoaderPool) -> None:
    reader = await spare_of(pool)
    task = await busy(pool)
    calm = asyncio.create_task(is_read(pool, SOMEBODY))
    os.kill(reader, signal.SIGKILL)
    with pytest.raises(UnreadableFile, match="is damaged, or needs more memory than a document should; save it again"):
        await task
    assert await calm


async def test_a_spare_reader_that_was_killed_is_replaced(pool: LoaderPool) -> None:
    os.kill(await spare_of(pool), signal.SIGKILL)
    await until(lambda: not readers_of(pool))
    assert await is_read(pool)


def wait_until_dead(pid: int) -> None:
    """A process that was killed on a busy machine dies when it is its turn."""
    while Path(f"/proc/{pid}").exists() and status_of(pid)[0] != "Z":
        time.sleep(0.005)


async def test_a_server_that_was_killed_is_replaced(pool: LoaderPool, caplog: pytest.LogCaptureFixture) -> None:
    await is_read(pool)
    first = server_of(pool)
    os.kill(first, signal.SIGKILL)
    await asyncio.to_thread(wait_until_dead, first)
    assert await is_read(pool)
    assert server_of(pool) != first
    assert "died; it is replaced" in caplog.text


async def test_a_server_that_answers_no_more_is_replaced(pool: LoaderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    await spare_of(pool)
    first = server_of(pool)
    monkeypatch.setattr(fork_server, "LAST_WORD_S", 0.2)
    await spare_of(pool)  # the first that waits no longer than that
    await until(lambda: sleeps(first))  # before, it may still hold the reader's socket open
    os.kill(first, signal.SIGSTOP)
    assert await is_read(pool)
    assert server_of(pool) != first


async def test_a_file_whose_server_was_killed_is_begun_anew(pool: LoaderPool) -> None:
    await is_read(pool)
    task = await busy(pool, limits=Limits(wall_s=60, cpu_s=1))
    os.kill(server_of(pool), signal.SIGKILL)
    with pytest.raises(UnreadableFile, match="far more work"):
        await task


async def test_without_processes_it_is_not_the_files_fault(
    monkeypatch: pytest.MonkeyPatch, new_pool: LoaderPool
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ReadersUnavailable):
        await is_read(new_pool)
    monkeypatch.undo()
    assert await is_read(new_pool)


async def test_an_owner_has_one_reader_at_a_time_and_all_together_a_few(pool: LoaderPool) -> None:
    slow = Limits(wall_s=60, cpu_s=2)
    mine = [asyncio.create_task(pool.read(*ENDLESS, slow, owner=ME)) for _ in range(AT_ONCE_MAX + 1)]
    assert await is_read(pool, SOMEBODY)
    assert not any(task.done() for task in mine[1:])
    for task in mine:
        task.cancel()
    assert all(isinstance(end, BaseException) for end in await asyncio.gather(*mine, return_exceptions=True))
    assert await is_read(pool, ME)


async def test_readers_inherit_nothing(new_pool: LoaderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    reader = await spare_of(new_pool)
    await until(lambda: descriptors(reader) == {"0", "1", "2"})
    for process in (reader, server_of(new_pool)):
        assert environment(process) == b""
        assert os.getsid(process) == server_of(new_pool) != os.getsid(0)
    assert {os.readlink(f"/proc/{reader}/fd/{number}") for number in (1, 2)} == {"/dev/null"}


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def descriptors(pid: int) -> set[str]:
    return {entry.name for entry in Path(f"/proc/{pid}/fd").iterdir()}


async def test_all_end_with_a_worker_that_is_killed() -> None:
    program = (
        "import asyncio\n"
        "from tests.retrieval.loaders.test_pool import *\n"
        "async def main():\n"
        "    pool = LoaderPool()\n"
        "    await is_read(pool)\n"
        "    task = await busy(pool)\n"
        "    print(server_of(pool), *readers_of(pool), flush=True)\n"
        "    await task\n"
        "asyncio.run(main())"
    )
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE, cwd=ROOT)
    assert worker.stdout is not None
    processes = [int(pid) for pid in (await worker.stdout.readline()).split()]
    assert len(processes) >= 2
    worker.kill()
    await worker.wait()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))


async def test_signals_that_a_draining_worker_gets_stop_no_reader() -> None:
    server = ForkServer()
    reader = server.begin()
    try:
        await until(lambda: b"SigIgn" in Path(f"/proc/{server.pid}/status").read_bytes() and ignores(server.pid))
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(server.pid, number)
        job = Job.of(CALM[0].name, len(CALM[1]), MOST)
        assert judged(await asyncio.to_thread(reader.run, job, CALM[1]), document_in).document == formats.load(*CALM)
    finally:
        reader.close()
        server.close()
    assert server._process.poll() is not None


def ignores(pid: int) -> bool:
    """Whether it has come so far that SIGTERM does not end it."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def answer(header: str) -> bytes:
    return framed(header.replace("{", '{"media_type": "text/plain", ', 1).encode()) + b"text"


def test_an_answer_that_makes_sense_is_believed() -> None:
    document, pieces = judged(
        Ended(answer('{"title": "a", "sections": [["b", 1, 4]], "pieces": [[0, 1, 4]]}'), 0), document_in
    )
    assert (document.title, document.text, document.sections) == ("a", "text", (Section("b", 1, 4),))
    assert pieces == [Piece(0, 1, 4)]


@pytest.mark.parametrize(
    "made",
    [
        b"",
        b"\xff\xff\xff\xff{}",
        answer("no json"),
        answer('{"title": 1}'),
        answer('{"other": "a"}'),
        answer('{"sections": [["a", 0, 5]]}'),
        answer('{"sections": [["a", -1, 2]]}'),
        answer('{"sections": [["a", 2, 4], ["b", 1, 3]]}'),
        answer('{"sections": [["a", 0, 4]], "pieces": [[1, 0, 4]]}'),
        answer('{"sections": [["a", 0, 4]], "pieces": [[0, 3, 1]]}'),
        answer('{"title": "%s"}' % ("a" * 2000)),
        framed(b"{}"),
        answer('{"title": "a"}') + b"\xff",
        answer('{"bug": "KeyError in docx.py:1"}'),
    ],
)
def test_an_answer_that_makes_no_sense_is_not_believed(made: bytes) -> None:
    with pytest.raises(UnreadableFile, match="is damaged"):
        judged(Ended(made, 0), document_in)


def test_a_bug_of_a_loader_is_told_of_without_the_files_content(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnreadableFile):
        judged(Ended(answer('{"bug": "KeyError in docx.py:1"}'), 0), document_in)
    assert caplog.messages == ["a loader failed on a file: KeyError in docx.py:1"]
