"""Files are read in threads of their own, and not for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from retrieval.errors import UnreadableFile
from worker import file_reader
from worker.file_reader import AT_ONCE_MAX, FileReader


@pytest.fixture
def reader() -> Iterator[FileReader]:
    reader = FileReader()
    yield reader
    reader.close()


async def test_the_text_of_a_file(reader: FileReader) -> None:
    assert await reader.text("a.md", b"# Title\n\nThe port is 8080.") == "# Title\n\nThe port is 8080."


@pytest.mark.parametrize(("name", "data"), [("a.exe", b"x"), ("a.txt", b""), ("a.txt", b"a\0b"), ("", b"x")])
async def test_what_cannot_be_read_is_refused(reader: FileReader, name: str, data: bytes) -> None:
    with pytest.raises(UnreadableFile):
        await reader.text(name, data)


async def test_a_file_that_takes_too_long_is_given_up_and_holds_up_only_other_files(
    reader: FileReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(file_reader, "load", lambda _path, _data: release.wait())
    monkeypatch.setattr(file_reader, "READ_S", 0.01)
    try:
        for _ in range(AT_ONCE_MAX + 1):
            with pytest.raises(UnreadableFile, match="takes longer"):
                await reader.text("a.txt", b"x")
        assert await asyncio.to_thread(lambda: "other threads are free") == "other threads are free"
    finally:
        release.set()
