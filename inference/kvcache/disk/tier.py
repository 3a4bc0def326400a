"""The disk tier: a folder of saved states, written on one thread and read on another, never on the engine's.

It is a cache, and nothing depends on it: a damaged file is deleted and counted, a disk that others fill gets back the
space of the oldest files, and one that fails is left alone for a while. A folder that another worker holds is not used
until that worker exits.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from time import monotonic

import numpy as np

from inference.generated_tokens import GeneratedTokens
from inference.kvcache.disk.file import KV, TEMPORARY, TURNS, KvFile, UnreadableFile, read_tokens, write_tokens
from inference.kvcache.disk.index import DiskIndex, IndexedState, chain, digest_of
from inference.kvcache.host_cache import Entry
from inference.prompt import CacheScope

log = logging.getLogger("firsttoken.disk")

UNWRITTEN_BYTES_MAX = 256 * 2**20  # states queued for a slow disk take memory; beyond this they are dropped
FORMERLY = (".root", ".kv")  # of layouts of earlier versions
SPARE_BYTES = 512 * 2**20  # left free on the disk: a database may live there
REST_S = 60.0  # after a write that failed: whatever filled the disk may be gone
TAKE_S = 1.0  # between two attempts to take a folder over from a predecessor that is still draining
CLOSE_S = 5.0  # to write what is in memory when the worker stops
FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True)
class Found:
    """A file with the first `tokens` of a prompt."""

    name: str
    tokens: int
    scope: CacheScope


class DiskTier:
    """`start`, then match and write from one thread, then `close`. Raises nothing: a failure only skips the operation.

    The `turns` whose tokens are part of the states are kept next to them.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: bytes,
        bytes_max: int,
        turns: GeneratedTokens | None,
        *,
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        self._folder, self._fingerprint, self._spare_bytes = folder, fingerprint, spare_bytes
        self._turns, self._turns_written = turns, 0
        self._index = DiskIndex(bytes_max)
        self._lock = threading.Lock()  # guards the index
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="kv-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="kv-read")
        self._unwritten_bytes = 0
        self._writes_until = float("inf")
        self._rests_until = 0.0  # 0: the last write was successful
        self._owner: int | None = None
        self._closing = threading.Event()
        self.ready = threading.Event()  # the files that existed at start are indexed
        self.writes = False
        self.totals: Counter[str] = Counter()  # read, written, damaged, dropped

    @property
    def files(self) -> int:
        return len(self._index)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._index.size

    def start(self) -> None:
        """Take the folder and read the turns, with which the very first prompt is rendered; that takes milliseconds.
        The rest is scanned in the background. A folder that another worker holds is taken over once it is released."""
        if self._take_folder():
            self._read_turns()
            self._reader.submit(self._scan)
            return
        self.ready.set()
        if self._owner is not None:
            log.info("conversations are not kept on disk while another worker uses %s", self._folder)
            self._reader.submit(self._follow)

    def match(self, tokens: Sequence[int], scope: CacheScope) -> Found | None:
        """The file with the longest shared prefix, in whole blocks."""
        blocks = chain(tokens, digest_of(scope, self._fingerprint)) if self.files else ()
        with self._lock:
            file, length = self._index.match(blocks)
        return Found(file.name, length, scope) if file else None

    def read(self, found: Found) -> Future[Entry | None]:
        """Start reading; the result is None if the file is deleted or damaged."""
        return self._reader.submit(self._read, found)

    def write(self, entry: Entry, *, patient: bool = False) -> None:
        """Queue a state for writing, unless a file has it already. `patient`: the caller keeps the state in memory
        anyway, so any number may wait for the disk."""
        digest = digest_of(entry.scope, self._fingerprint)
        blocks = chain(entry.tokens, digest)
        if not self.writes or self._rests or not blocks:
            return
        with self._lock:
            if self._index.holds(blocks):
                return
            if not patient and self._unwritten_bytes + entry.written_bytes > UNWRITTEN_BYTES_MAX:
                self.totals["dropped"] += 1
                return
            self._unwritten_bytes += entry.written_bytes
        self._writer.submit(self._write, entry, digest, blocks)

    def holds(self, tokens: Sequence[int], scope: CacheScope) -> bool:
        """Whether a file has these tokens, except for those of a last partial block."""
        blocks = chain(tokens, digest_of(scope, self._fingerprint))
        with self._lock:
            return self._index.holds(blocks)

    def close(self) -> None:
        """Finish writing; takes a few seconds at most."""
        self._writes_until = monotonic() + CLOSE_S
        self._closing.set()
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        try:
            if self.writes and self.files:  # turns are useless without states
                self._write_turns()
        except OSError as error:
            self._rest(error)
        self.writes = False
        self._release()

    def _take_folder(self) -> bool:
        """Returns whether this worker holds the folder now. If another one holds it, it can be tried again."""
        try:
            if self._owner is None:
                self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                self._owner = os.open(self._folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning("conversations are not kept on disk: %s: %s", self._folder, error.strerror)
            self._release()
            return False
        self.writes = True
        return True

    def _release(self) -> None:
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    # --- on the threads ---

    def _follow(self) -> None:
        while self._owner is not None and not self._closing.wait(TAKE_S):
            if self._take_folder():
                self._read_turns()
                self._scan()
                break

    def _scan(self) -> None:
        """Index the folder, the newest files last: they stay longest."""
        try:
            for path in sorted(self._folder.iterdir(), key=_used_ns):
                if path.suffix in (TEMPORARY, *FORMERLY):
                    path.unlink(missing_ok=True)
                elif path.suffix == KV:
                    self._take(path)
        except OSError as error:
            log.warning("conversations on disk cannot be read: %s", error)
        finally:
            self.ready.set()

    def _take(self, path: Path) -> None:
        try:
            size, file = path.stat().st_size, KvFile.peek(path)
        except (UnreadableFile, OSError) as error:
            self._discard(path.name, error)
            return
        ours = file.fingerprint == self._fingerprint
        blocks = chain(file.tokens.tolist(), file.scope) if ours else ()
        with self._lock:
            gone = self._index.add(IndexedState(path.name, size, blocks))
        self._remove(gone)

    def _read(self, found: Found) -> Entry | None:
        path = self._folder / found.name
        try:
            file = KvFile.read(path)
            if (file.fingerprint, file.scope) != (self._fingerprint, digest_of(found.scope, self._fingerprint)):
                raise UnreadableFile("the file has changed")
            os.utime(path)  # keeps the LRU order across restarts
        except (UnreadableFile, OSError) as error:
            self._discard(found.name, error)
            return None
        except MemoryError:
            log.warning("a conversation is prefilled again: there is no memory to load %s", found.name)
            return None
        with self._lock:
            self._index.use(found.name)
        self.totals["read"] += 1
        return Entry(tuple(file.tokens.tolist()), found.scope, file.state, file.checkpoints)

    def _write(self, entry: Entry, digest: bytes, blocks: tuple[bytes, ...]) -> None:
        try:
            if not self.writes or self._rests or monotonic() > self._writes_until:
                self.totals["dropped"] += 1
                return
            self._make_room(entry.written_bytes)
            file = KvFile(self._fingerprint, digest, np.array(entry.tokens, "<i4"), entry.state, entry.checkpoints)
            self._write_turns()
            path = file.write(self._folder)
            with self._lock:
                gone = self._index.add(IndexedState(path.name, path.stat().st_size, blocks))
            self.totals["written"] += 1
            self._remove(gone)
            if self._rests_until:
                self._rests_until = 0.0
                log.info("conversations are kept on disk again: %s", self._folder)
        except OSError as error:
            self._rest(error)
        finally:
            with self._lock:
                self._unwritten_bytes -= entry.written_bytes

    def _write_turns(self) -> None:
        """Called before states that contain their tokens are written. Raises OSError."""
        if self._turns is not None and self._turns.changes > self._turns_written:
            self._turns_written = self._turns.changes
            write_tokens(self._folder, self._turns)

    def _read_turns(self) -> None:
        try:
            if self._turns is not None:
                self._turns.load(read_tokens(self._folder))
        except (UnreadableFile, OSError) as error:
            self._discard(TURNS, error)

    @property
    def _rests(self) -> bool:
        return monotonic() < self._rests_until

    def _rest(self, error: OSError) -> None:
        if not self._rests_until:
            log.warning("conversations are not kept on disk for now: %s: %s", self._folder, error.strerror)
        self._rests_until = monotonic() + REST_S

    def _make_room(self, bytes_: int) -> None:
        """Others need the disk more than a cache. Raises OSError if all of its files are too little."""
        while (room := shutil.disk_usage(self._folder).free - self._spare_bytes) < bytes_:
            with self._lock:
                gone = self._index.shrink(bytes_ - room)
            if not gone:
                raise OSError(ENOSPC, "the disk is nearly full")
            self._remove(gone)

    def _discard(self, name: str, error: Exception) -> None:
        log.warning("%s is removed: %s", self._folder / name, error)
        self.totals["damaged"] += 1
        with self._lock:
            self._index.remove(name)
        self._remove([name])

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)


def _used_ns(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
