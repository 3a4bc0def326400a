"""/v1/files: what callers send, received into a temporary file first, and what a citation points at."""

from __future__ import annotations

import tempfile
import unicodedata
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from mimetypes import guess_type
from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO, Literal, cast
from urllib.parse import quote

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http import HttpProcessingError

from retrieval.records import Upload
from worker.auth.audit import Act
from worker.auth.scope import USUAL, Scope
from worker.edge.body import BUDGET, MEMORY_BYTES_MAX, Reservation, arriving, coding_of
from worker.errors import ApiError, invalid
from worker.http.query import PageQuery, Query, list_object, whole
from worker.http.request import BYTES, PLAIN, PRINCIPAL, Json, Routes, noted, path_id, speaks_anthropic
from worker.services import SERVICES
from worker.wire import limits
from worker.wire.strict import Id

# The text of a file never changes under its id; it is its tenant's own, so no shared cache may keep it.
CACHING = "private, max-age=3600"
PURPOSES = ("assistants", "batch", "user_data", "vision")
USUAL_PURPOSE = "user_data"  # of Anthropic's clients, who know none
FIELD_BYTES_MAX = 1024
LIMIT_MAX = 10_000  # that may be asked for, as in OpenAI's API; what a page does not hold is on the next one
PARTS_MAX = 8
MESSAGE_CHARS_MAX = 300  # the parser quotes what it could not read
# What the multipart parser raises on malformed bodies: bad boundaries, lines, headers, charsets.
MALFORMED = (ValueError, LookupError, AssertionError, RuntimeError, HttpProcessingError)


def file_object(file: Upload) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": None,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def anthropic_file(file: Upload) -> dict[str, Any]:
    """As Anthropic's API describes it."""
    return {
        "id": file.id,
        "type": "file",
        "filename": file.filename,
        "mime_type": guess_type(file.filename)[0] or BYTES,
        "size_bytes": file.bytes,
        "created_at": file.created_at.isoformat(),
        "expires_at": None,
        "downloadable": True,
    }


routes = Routes()


@routes.post(
    "/v1/files", Scope.INGEST, form={"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}}
)
async def create(request: web.Request) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    bytes_max = services.config.request_mb * 2**18  # a quarter of what may be buffered
    with request.app[BUDGET].reserve(tenant_id) as holding:
        async with receive(request, holding, bytes_max=bytes_max) as arrived:
            file = await services.uploads.create(
                tenant_id, arrived.filename, arrived.purpose, arrived.size, arrived.content
            )
    return _shown(request, file)


class FilesQuery(PageQuery):
    """`page` is what Anthropic's clients call `after`."""

    limit: Annotated[int, *whole(1, LIMIT_MAX)] = limits.FILES_PAGE_MAX
    purpose: str | None = None
    page: Id | None = None


@routes.get("/v1/files", USUAL)
async def list_files(request: web.Request, page: FilesQuery) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    if speaks_anthropic(request):
        if "ids" in request.query or "ids[]" in request.query:
            raise invalid("ids", "files are listed in pages here: read a file by its id instead.")
        page = page.model_copy(update={"after": page.page or page.after})
    size = min(page.limit, limits.FILES_PAGE_MAX)
    files = await services.uploads.list(
        tenant_id,
        after=page.after,
        limit=size + 1,
        newest_first=page.order == "desc",
        purpose=page.purpose,
    )
    await page.check(files, partial(services.uploads.get, tenant_id))
    shown = list_object([_shown(request, file) for file in files[:size]], has_more=len(files) > size)
    if speaks_anthropic(request):
        shown["next_page"] = shown["last_id"] if shown["has_more"] else None
    return shown


def _shown(request: web.Request, file: Upload) -> dict[str, Any]:
    return anthropic_file(file) if speaks_anthropic(request) else file_object(file)


@routes.get("/v1/files/{id}", USUAL)
async def retrieve(request: web.Request) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    return _shown(request, await services.uploads.get(tenant_id, path_id(request, "file")))


class ContentQuery(Query):
    form: Literal["text"] | None = None


@routes.get("/v1/files/{id}/content", USUAL, tells=(BYTES, PLAIN))
async def content(request: web.Request, query: ContentQuery) -> web.StreamResponse:
    """The file as it was uploaded. With `form=text`, and for files ingested from disk, its extracted text."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    file_id = path_id(request, "file")
    file = await services.uploads.get(tenant_id, file_id)
    if file.uploaded and query.form is None:
        name = quote(file.filename, safe="")
        response = web.StreamResponse(headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"})
        response.content_type, response.content_length = "application/octet-stream", file.bytes
        await response.prepare(request)
        async with aclosing(services.uploads.pieces(tenant_id, file_id)) as pieces:
            async for piece in pieces:
                await response.write(piece)
        return response
    text = (await services.passages.file(tenant_id, file_id)).content
    return web.Response(text=text, content_type="text/plain", charset="utf-8", headers={"Cache-Control": CACHING})


@routes.delete("/v1/files/{id}", Scope.INGEST)
async def delete(request: web.Request) -> Json:
    """Delete the file, also from every vector store that contains it."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    file_id = path_id(request, "file")
    await services.file_queue.delete_file(tenant_id, file_id, also=noted(request, Act.FILE_DELETED, file_id))
    if speaks_anthropic(request):
        return {"id": file_id, "type": "file_deleted"}
    return {"id": file_id, "object": "file", "deleted": True}


@dataclass(frozen=True, slots=True)
class Received:
    filename: str
    purpose: str
    size: int  # in bytes
    content: BinaryIO  # positioned at its start


@asynccontextmanager
async def receive(request: web.Request, holding: Reservation, *, bytes_max: int) -> AsyncIterator[Received]:
    """The file of a multipart form with `file` and `purpose`, kept until the block ends.

    Raises ApiError 400, 408, 415, 429, and 413 naming the file; and ClientGone.
    """
    if coding_of(request) is not None:
        raise ApiError(415, "A form may not be compressed.", param="Content-Encoding")
    if not request.content_type.startswith("multipart/"):
        raise _refused("Send the file as multipart/form-data, with the fields 'file' and 'purpose'.", "file")
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX) as spool:
        content = cast(BinaryIO, spool)
        filename: str | None = None
        fields: dict[str, str] = {}
        try:
            async with arriving(request, bytes_max=bytes_max) as progress:
                async for part in _form_parts(await request.multipart()):
                    if part.name == "file" and filename is None:
                        filename = safe_name(part.filename)
                        await _spool(part, content, bytes_max, holding, progress)
                    else:
                        fields[part.name or ""] = await _field(part)
                    progress()
        except MALFORMED as error:
            raise _refused(f"The form could not be read: {error}"[:MESSAGE_CHARS_MAX], "file") from None
        if filename is None:
            raise _refused("The form has no field 'file' with a file.", "file")
        size = content.tell()
        content.seek(0)
        usual = USUAL_PURPOSE if speaks_anthropic(request) else None
        yield Received(filename, purpose_of(fields, usual), size, content)


async def _form_parts(form: MultipartReader) -> AsyncIterator[BodyPartReader]:
    count = 0
    while (part := await form.next()) is not None:
        count += 1
        if count > PARTS_MAX or not isinstance(part, BodyPartReader):
            raise _refused(f"The form may have at most {PARTS_MAX} plain fields.", "file")
        yield part


async def _spool(
    part: BodyPartReader, content: BinaryIO, bytes_max: int, holding: Reservation, progress: Callable[[], None]
) -> None:
    while chunk := await part.read_chunk():
        progress()
        if content.tell() + len(chunk) > bytes_max:
            message = f"The file is larger than {bytes_max / 2**20:g} MB, which is the limit."
            raise ApiError(413, message, param="file", code="file_too_large")
        holding.resize(content.tell() + len(chunk))
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


def purpose_of(fields: Mapping[str, str], usual: str | None) -> str:
    """`usual`: where none is given. Raises ApiError 400, also for a field without effect."""
    for name in fields:
        if name != "purpose":
            message = f"This server does not support '{name}' yet: leave it out."
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    purpose = fields.get("purpose", usual)
    if purpose not in PURPOSES:
        message = f"Invalid 'purpose': it must be {' or '.join(PURPOSES)}."
        code = "missing_required_parameter" if purpose is None else "invalid_value"
        raise ApiError(400, message, param="purpose", code=code)
    return purpose


def safe_name(filename: str | None) -> str:
    """The last component of a name, without characters that are unsafe in file systems or pages. Raises ApiError
    400.
    """
    printable = "".join(c for c in filename or "" if unicodedata.category(c)[0] != "C")
    name = PurePosixPath(printable.replace("\\", "/")).name.strip()
    if not name or name in (".", "..") or len(name) > limits.FILENAME_CHARS_MAX:
        message = (
            f"The file needs a name of 1 to {limits.FILENAME_CHARS_MAX} characters; its extension selects the loader."
        )
        raise ApiError(400, message, param="file", code="invalid_value")
    return name
