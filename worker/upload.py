"""A file on its way in: from the parts of a multipart body to a temporary file, never as a whole in memory."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

from aiohttp import BodyPartReader, MultipartReader, web

from worker.errors import ApiError
from worker.wire.file import purpose_of, safe_name

MEMORY_BYTES_MAX = 1024 * 1024  # larger ones go to the disk while they arrive
FIELD_BYTES_MAX = 1024
PARTS_MAX = 8


@dataclass(frozen=True, slots=True)
class Arrived:
    filename: str
    purpose: str
    size: int  # bytes
    content: BinaryIO  # from its beginning


@asynccontextmanager
async def receive(request: web.Request, bytes_max: int) -> AsyncIterator[Arrived]:
    """The file of a form with `file` and `purpose`. Raises ApiError 400, and 413 naming the file."""
    if not request.content_type.startswith("multipart/"):
        raise _refused("Send the file as multipart/form-data, with the fields 'file' and 'purpose'.", "file")
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX) as spool:
        content = cast(BinaryIO, spool)
        filename: str | None = None
        fields: dict[str, str] = {}
        try:
            async for part in _parts(await request.multipart()):
                if part.name == "file" and filename is None:
                    filename = safe_name(part.filename)
                    await _spool(part, content, bytes_max)
                else:
                    fields[part.name or ""] = await _field(part)
        except ValueError as error:  # what the parser of multipart bodies raises
            raise _refused(f"The form could not be read: {error}", "file") from None
        if filename is None:
            raise _refused("The form has no field 'file' with a file.", "file")
        size = content.tell()
        content.seek(0)
        yield Arrived(filename, purpose_of(fields), size, content)


async def _parts(form: MultipartReader) -> AsyncIterator[BodyPartReader]:
    count = 0
    while (part := await form.next()) is not None:
        count += 1
        if count > PARTS_MAX or not isinstance(part, BodyPartReader):
            raise _refused(f"A form of at most {PARTS_MAX} plain fields is expected.", "file")
        yield part


async def _spool(part: BodyPartReader, content: BinaryIO, bytes_max: int) -> None:
    while chunk := await part.read_chunk():
        if content.tell() + len(chunk) > bytes_max:
            message = f"The file is larger than {bytes_max // 2**20} MB, which is the most here."
            raise ApiError(413, message, param="file", code="file_too_large")
        content.write(chunk)


async def _field(part: BodyPartReader) -> str:
    text = b""
    while chunk := await part.read_chunk(FIELD_BYTES_MAX):
        text += chunk
        if len(text) > FIELD_BYTES_MAX:
            raise _refused(f"The field '{part.name}' is too long.", part.name or "file")
    return text.decode("utf-8", "replace")


def _refused(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
