"""Files that clients send: uploads are received into a temporary file; in a request their text takes their place before
it becomes a turn.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO, cast
from uuid import UUID

from aiohttp import BodyPartReader, MultipartReader, web

from agents.message import Item
from retrieval.errors import FileNotFound, UnreadableFile
from retrieval.loaders.formats import bytes_max
from retrieval.loaders.job import Limits
from retrieval.loaders.pool import LoaderPool
from retrieval.loaders.source import checked
from worker.auth.seals import Seals, opened
from worker.errors import ApiError
from worker.wire import limits
from worker.wire.file import purpose_of, safe_name
from worker.wire.items import FunctionCallOutputItem, InputItem, MessageItem
from worker.wire.parts import FilePart, Part, TextPart

if TYPE_CHECKING:
    from retrieval.store import PassageStore, UploadStore

# A book takes one or two seconds. The client waits for its first token, but others wait for their next one.
READ_LIMITS = Limits(wall_s=20, cpu_s=20, niceness=5)
MEMORY_BYTES_MAX = 1024 * 1024  # larger ones go to the disk while they arrive
FIELD_BYTES_MAX = 1024
PARTS_MAX = 8


class Attachments:
    """Turns the entries of requests into items. Files are read concurrently with those that the stores ingest."""

    def __init__(self, uploads: UploadStore, passages: PassageStore, loaders: LoaderPool, seals: Seals) -> None:
        self._uploads = uploads
        self._passages = passages
        self._loaders = loaders
        self._seals = seals

    async def items(self, tenant_id: UUID, entries: Sequence[InputItem], param: str) -> tuple[Item, ...]:
        """New items with new ids: those of the client may already be taken.

        `param` is the name under which the client sent them. Raises ApiError 400 and 404 naming the part, and
        ReadersUnavailable.
        """
        files = sum(isinstance(part, FilePart) for entry in entries for part in _parts(entry))
        if files > limits.FILES_MAX:
            message = f"A request may contain at most {limits.FILES_MAX} files."
            raise ApiError(400, message, param=param, code="too_many_files")
        items = [(await self._read(tenant_id, entry, f"{param}[{i}]")).item() for i, entry in enumerate(entries)]
        places = (f"{param}[{i}].encrypted_content" for i in range(len(items)))
        return tuple(opened(self._seals, tenant_id, item, place) for item, place in zip(items, places, strict=True))

    async def _read(self, tenant_id: UUID, entry: InputItem, param: str) -> InputItem:
        """The entry with the texts of its files in their place."""
        parts = _parts(entry)
        if not any(isinstance(part, FilePart) for part in parts):
            return entry
        name = "content" if isinstance(entry, MessageItem) else "output"
        read = [
            await self._text(tenant_id, part, f"{param}.{name}[{i}]") if isinstance(part, FilePart) else part
            for i, part in enumerate(parts)
        ]
        return entry.model_copy(update={name: read})

    async def _text(self, tenant_id: UUID, part: FilePart, param: str) -> TextPart:
        try:
            if part.file_id:
                name, text = await self._stored(tenant_id, part.file_id)
            else:
                name, text = part.name, await text_of(self._loaders, tenant_id, part.name, part.data)
        except UnreadableFile as error:
            raise ApiError(400, f"The file '{part.name}' {error}.", param=param, code=error.code) from None
        except FileNotFound as error:
            message = f"There is no file with the id '{error.file_id}'."
            raise ApiError(404, message, type="not_found_error", param=f"{param}.file_id", code="not_found") from None
        if len(text) > limits.TEXT_CHARS_MAX:
            message = f"The file '{name}' has more than {limits.TEXT_CHARS_MAX} characters."
            raise ApiError(400, message, param=param, code="string_above_max_length")
        return TextPart(type="input_text", text=f"File {name}:\n{text}")

    async def _stored(self, tenant_id: UUID, file_id: str) -> tuple[str, str]:
        """Name and text of an uploaded or ingested file. Raises FileNotFound, UnreadableFile, ReadersUnavailable."""
        file = await self._uploads.get(tenant_id, file_id)
        name = PurePath(file.filename).name
        if file.uploaded:
            data = await self._uploads.read(tenant_id, file_id)
            return name, await text_of(self._loaders, tenant_id, name, data)
        return name, (await self._passages.file(tenant_id, file_id)).content


async def text_of(loaders: LoaderPool, tenant_id: UUID, name: str, data: bytes) -> str:
    """The text of a file of that name, within READ_LIMITS; a tenant's files are read one after the other.

    Raises UnreadableFile, ReadersUnavailable.
    """
    path = Path(name)
    read = await loaders.read(path, checked(data, bytes_max(path)), READ_LIMITS, owner=tenant_id)
    return read.document.text


def _parts(entry: InputItem) -> Sequence[Part]:
    match entry:
        case MessageItem():
            return entry.content
        case FunctionCallOutputItem():
            return entry.output
    return ()


@dataclass(frozen=True, slots=True)
class Upload:
    filename: str
    purpose: str
    size: int  # bytes
    content: BinaryIO  # at its start


@asynccontextmanager
async def receive(request: web.Request, bytes_max: int) -> AsyncIterator[Upload]:
    """The file of a form with `file` and `purpose`. Raises ApiError 400, and 413 naming the file."""
    if not request.content_type.startswith("multipart/"):
        raise _refused("Send the file as multipart/form-data, with the fields 'file' and 'purpose'.", "file")
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX) as spool:
        content = cast(BinaryIO, spool)
        filename: str | None = None
        fields: dict[str, str] = {}
        try:
            async for part in _form_parts(await request.multipart()):
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
        yield Upload(filename, purpose_of(fields), size, content)


async def _form_parts(form: MultipartReader) -> AsyncIterator[BodyPartReader]:
    count = 0
    while (part := await form.next()) is not None:
        count += 1
        if count > PARTS_MAX or not isinstance(part, BodyPartReader):
            raise _refused(f"The form may have at most {PARTS_MAX} plain fields.", "file")
        yield part


async def _spool(part: BodyPartReader, content: BinaryIO, bytes_max: int) -> None:
    while chunk := await part.read_chunk():
        if content.tell() + len(chunk) > bytes_max:
            message = f"The file is larger than {bytes_max // 2**20} MB, which is the limit."
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
