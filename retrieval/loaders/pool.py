"""Parses documents in processes that are killed at their limits, so that a file harms nothing but itself.

Nothing here looks into a file: a job goes to the fork server; a document comes back, or the reason why not. That result
comes from a process that read untrusted bytes, so it is validated like any other external input.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, Field

from inference.lru_cache import LruCache
from inference.picture import ASPECT_MAX, Picture, Pixels
from retrieval.chunking import CHUNKS_MAX, Piece
from retrieval.errors import ReadersUnavailable, UnreadableFile
from retrieval.loaders.document import HEADING_CHARS_MAX, SECTIONS_MAX, Document, Section
from retrieval.loaders.fork_server import Ended, ForkServer, Reader
from retrieval.loaders.job import LENGTH, Job, Limits

log = logging.getLogger("firsttoken.loaders")

# A hostile file occupies its place until its limit, with a core and a gigabyte of memory. No owner gets two places: one
# is for the queue of the stores, one for a tenant with a slow file, and one for everybody else.
AT_ONCE_MAX = 3
# The largest picture takes a second, and its client waits for a first token.
PICTURE_LIMITS = Limits(wall_s=10, cpu_s=5, niceness=5)
PIXEL_BYTES_MAX = 64 * 2**20  # five pictures of the largest size, or a hundred screens of a page
TITLE_CHARS_MAX = 1000  # of file names, too
TOO_MUCH_WORK = "takes far more work to read than files of its size do; save it again, or split it into smaller files"
BROKEN = "is damaged, or needs more memory than a document should; save it again, or split it into smaller files"


Result = TypeVar("Result")


class Read(NamedTuple):
    document: Document
    pieces: list[Piece]  # empty unless requested


class LoaderPool:
    """Holds a fork server from `start` or the first file on, replaced if it dies, and a spare reader.

    Used on one event loop; threads only wait for readers.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE_MAX)
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._threads = ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="file")
        self._pixels: LruCache[tuple[Hashable, str], Pixels] = LruCache(PIXEL_BYTES_MAX, lambda _, each: len(each.rgb))
        self._server: ForkServer | None = None
        self._spare: Reader | None = None

    def start(self) -> None:
        """Start the server, which takes a fifth of a second in the background to load the parsers."""
        self._prepare()

    def close(self) -> None:
        """Kill busy readers and the server."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._spare:
            self._spare.close()
        if self._server:
            self._server.close()
        self._spare = self._server = None

    async def read(self, path: Path, data: bytes, limits: Limits, *, owner: Hashable, split: bool = False) -> Read:
        """The document in a file of that name; with `split`, its pieces too.

        Files of one `owner` are read one after the other, so that slow ones delay only each other. Cancelling the call
        kills the reader. Raises UnreadableFile, ReadersUnavailable.
        """
        name = path.name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")  # names need not be Unicode
        return await self._judged(Job.of(name, len(data), limits, split=split), data, owner, document_in)

    async def pixels(self, owner: Hashable, picture: Picture) -> Pixels:
        """The pixels of a picture; otherwise as `read`. The newest are kept: each step of a conversation needs those of
        all its pictures."""
        key = owner, picture.digest
        if (pixels := self._pixels.get(key)) is None:
            job = Job.of("", len(picture.data), PICTURE_LIMITS, is_picture=True)
            pixels = await self._judged(job, picture.data, owner, _pixels_in)
        if pixels.is_thin:
            raise UnreadableFile(f"is more than {ASPECT_MAX} times as long as it is wide; cut it")
        self._pixels.put(key, pixels)
        return pixels

    async def _judged(self, job: Job, data: bytes, owner: Hashable, parse: Callable[[bytes], Result]) -> Result:
        turn = self._turns.setdefault(owner, asyncio.Lock())
        async with turn, self._places:
            ended = await self._run(job, data)
            if ended.status is None:  # the server died and took the reader along, perhaps not because of this file
                ended = await self._run(job, data)
            self._prepare()
            return await asyncio.get_running_loop().run_in_executor(self._threads, judged, ended, parse)

    async def _run(self, job: Job, data: bytes) -> Ended:
        try:
            reader = self._begun()
        except OSError as error:
            log.warning("no process could be started to read a document: %s", error)
            return Ended(b"", None)
        running = asyncio.get_running_loop().run_in_executor(self._threads, reader.run, job, data)
        running.add_done_callback(partial(self._let_go, reader, self._server))
        try:
            done, _ = await asyncio.wait([running], timeout=job.limits.wall_s)
        finally:
            reader.abandon()
            await asyncio.wait([running])  # ends at once now; the place is free only when nothing runs there
        if not done:
            raise UnreadableFile(f"takes longer than {job.limits.wall_s:g} s to read; split it into smaller files")
        try:
            return running.result()
        except TimeoutError:
            return Ended(b"", None)

    def _let_go(self, reader: Reader, server: ForkServer | None, running: asyncio.Future[Ended]) -> None:
        reader.close()
        if running.cancelled():
            return
        if isinstance(running.exception(), TimeoutError) and server is self._server:
            self._drop_server("does not report how its readers ended")

    def _drop_server(self, reason: str) -> None:
        log.warning("the fork server of the document readers %s; it is replaced", reason)
        if self._server:
            self._server.kill()
            self._server.close()
        self._server = None

    def _prepare(self) -> None:
        """Fork a reader in advance for the next file, because a fork takes milliseconds."""
        with suppress(OSError):
            self._spare = self._begun()

    def _begun(self) -> Reader:
        """Raises OSError if processes or descriptors run out."""
        spare, self._spare = self._spare, None
        if spare and spare.waits:
            return spare
        if spare:
            spare.close()
        if self._server:
            with suppress(BrokenPipeError, ConnectionResetError):
                return self._server.begin()
            self._drop_server("died")
        self._server = ForkServer()
        return self._server.begin()


class _Header(BaseModel):
    """A reader's header before the text, or instead of it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    title: Annotated[str, Field(max_length=TITLE_CHARS_MAX)] = ""
    media_type: Annotated[str, Field(max_length=100)] = ""
    sections: Annotated[
        list[tuple[Annotated[str, Field(max_length=HEADING_CHARS_MAX)], int, int]],
        Field(max_length=SECTIONS_MAX + 1),
    ] = []
    pieces: Annotated[list[tuple[int, int, int]], Field(max_length=CHUNKS_MAX)] = []
    width: Annotated[int, Field(ge=0)] = 0
    height: Annotated[int, Field(ge=0)] = 0
    unreadable: Annotated[str, Field(max_length=1000)] = ""
    bug: Annotated[str, Field(max_length=200)] = ""


def judged(ended: Ended, parse: Callable[[bytes], Result]) -> Result:
    """The result of a reader that has ended. Raises UnreadableFile, ReadersUnavailable."""
    if ended.status is None:
        raise ReadersUnavailable()
    if ended.status == -signal.SIGXCPU:
        raise UnreadableFile(TOO_MUCH_WORK)
    if ended.status != 0:
        raise UnreadableFile(BROKEN)
    try:
        return parse(ended.answer)
    except ValueError as error:  # includes ValidationError
        log.warning("a document reader sent an invalid result: %s", type(error).__name__)
        raise UnreadableFile(BROKEN) from None


def _opened(answer: bytes) -> tuple[_Header, bytes]:
    """The header, and what follows it."""
    length = int.from_bytes(answer[: LENGTH.size])
    body = LENGTH.size + length
    header = _Header.model_validate_json(answer[LENGTH.size : body])
    if header.bug:
        log.warning("a loader failed on a file: %s", header.bug)
        raise UnreadableFile(BROKEN)
    if header.unreadable:
        raise UnreadableFile(header.unreadable)
    return header, answer[body:]


def _pixels_in(answer: bytes) -> Pixels:
    header, rgb = _opened(answer)
    if not rgb or len(rgb) != 3 * header.width * header.height:
        raise ValueError("the result is incomplete")
    return Pixels(header.width, header.height, rgb)


def document_in(answer: bytes) -> Read:
    header, body = _opened(answer)
    if not header.media_type:
        raise ValueError("the result is incomplete")
    text = body.decode()
    sections = tuple(Section(*section) for section in header.sections)
    pieces = [Piece(*piece) for piece in header.pieces]
    _check([(section.start, section.end) for section in sections], len(text))
    _check([(piece.start, piece.end) for piece in pieces], len(text))
    if any(not 0 <= piece.section < len(sections) for piece in pieces):
        raise ValueError("a piece is in no section")
    return Read(Document(header.title, header.media_type, text, sections), pieces)


def _check(spans: list[tuple[int, int]], length: int) -> None:
    """Raises ValueError unless the spans are in order and within the text."""
    bounds = [0, *(bound for span in spans for bound in span), length]
    if any(before > after for before, after in pairwise(bounds)):
        raise ValueError("spans are out of order")
