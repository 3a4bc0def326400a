"""Reads the text of files that come with requests, each within a time, beside those that the stores take in."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from retrieval.loaders.formats import bytes_max
from retrieval.loaders.job import Limits
from retrieval.loaders.pool import LoaderPool
from retrieval.loaders.source import checked

# A book takes one or two seconds. Somebody waits for its first token, but others wait for their next one.
LIMITS = Limits(wall_s=20, cpu_s=20, niceness=5)


class FileReader:
    def __init__(self, pool: LoaderPool) -> None:
        self._pool = pool

    async def text(self, tenant_id: UUID, name: str, data: bytes) -> str:
        """The text of a file of that name; a tenant's are read one after the other.

        Raises UnreadableFile, ReadersUnavailable.
        """
        path = Path(name)
        read = await self._pool.read(path, checked(data, bytes_max(path)), LIMITS, owner=tenant_id)
        return read.document.text
