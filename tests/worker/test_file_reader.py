"""Files of requests are read for their tenant, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from retrieval.errors import UnreadableFile
from retrieval.loaders.pool import LoaderPool
from worker.file_reader import FileReader

TENANT = uuid4()


@pytest.fixture
def reader() -> Iterator[FileReader]:
    with closing(LoaderPool()) as pool:
        yield FileReader(pool)


async def test_the_text_of_a_file(reader: FileReader) -> None:
    assert await reader.text(TENANT, "a.md", b"# Title\n\nThe port is 8080.") == "# Title\n\nThe port is 8080."


@pytest.mark.parametrize(("name", "data"), [("a.exe", b"x"), ("a.txt", b""), ("a.txt", b"a\0b"), ("", b"x")])
async def test_what_cannot_be_read_is_refused(reader: FileReader, name: str, data: bytes) -> None:
    with pytest.raises(UnreadableFile):
        await reader.text(TENANT, name, data)
