"""Reads the text of files that come with requests, in threads of its own and within a time.

A file may be made to keep its loader busy. Then it waits for nobody but other files: the threads that tokenise prompts
and compile grammars are others.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from retrieval.errors import UnreadableFile
from retrieval.loaders.formats import bytes_max, load
from retrieval.loaders.source import checked

AT_ONCE_MAX = 2
READ_S = 20.0  # a book takes one or two; somebody waits for the first token


class FileReader:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="file")

    def close(self) -> None:
        """Do not wait for a loader that is still busy: its process has a limit of its own."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def text(self, name: str, data: bytes) -> str:
        """The text of a file of that name. Raises UnreadableFile."""
        path = Path(name)
        reading = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: load(path, checked(data, bytes_max(path))).text
        )
        try:
            async with asyncio.timeout(READ_S):
                return await reading
        except TimeoutError:
            raise UnreadableFile(f"takes longer than {READ_S:.0f} s to read") from None
