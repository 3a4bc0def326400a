"""Files in a request: their text takes their place before the request becomes a turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from uuid import UUID

from agents.message import Item
from retrieval.errors import FileNotFound, UnreadableFile
from worker.auth.seals import opened
from worker.errors import ApiError
from worker.services import Services
from worker.wire import limits
from worker.wire.items import FunctionCallOutputItem, InputItem, MessageItem
from worker.wire.parts import FilePart, Part, TextPart


async def items_of(services: Services, tenant_id: UUID, entries: Sequence[InputItem], param: str) -> tuple[Item, ...]:
    """New items, with ids of their own: what the caller calls them may already be taken.

    `param` is the name under which the caller sent them. Raises ApiError 400 and 404 naming the part.
    """
    files = sum(isinstance(part, FilePart) for entry in entries for part in _parts(entry))
    if files > limits.FILES_MAX:
        raise ApiError(400, f"A request may carry {limits.FILES_MAX} files.", param=param, code="too_many_files")
    reader = _Reader(services, tenant_id)
    items = [(await reader.read(entry, f"{param}[{i}]")).item() for i, entry in enumerate(entries)]
    places = (f"{param}[{i}].encrypted_content" for i in range(len(items)))
    return tuple(opened(services.seals, tenant_id, item, place) for item, place in zip(items, places, strict=True))


def _parts(entry: InputItem) -> Sequence[Part]:
    match entry:
        case MessageItem():
            return entry.content
        case FunctionCallOutputItem():
            return entry.output
    return ()


class _Reader:
    def __init__(self, services: Services, tenant_id: UUID) -> None:
        self._services = services
        self._tenant_id = tenant_id

    async def read(self, entry: InputItem, param: str) -> InputItem:
        """The entry with the texts of its files in their place."""
        parts = _parts(entry)
        if not any(isinstance(part, FilePart) for part in parts):
            return entry
        name = "content" if isinstance(entry, MessageItem) else "output"
        read = [
            await self._text(part, f"{param}.{name}[{i}]") if isinstance(part, FilePart) else part
            for i, part in enumerate(parts)
        ]
        return entry.model_copy(update={name: read})

    async def _text(self, part: FilePart, param: str) -> TextPart:
        try:
            name, text = await (self._kept(part.file_id) if part.file_id else self._sent(part))
        except UnreadableFile as error:
            raise ApiError(400, f"The file '{part.name}' {error}.", param=param, code=error.code) from None
        except FileNotFound as error:
            message = f"There is no file with the id '{error.file_id}'."
            raise ApiError(404, message, type="not_found_error", param=f"{param}.file_id", code="not_found") from None
        if len(text) > limits.TEXT_CHARS_MAX:
            message = f"The file '{name}' holds more than {limits.TEXT_CHARS_MAX} characters."
            raise ApiError(400, message, param=param, code="string_above_max_length")
        return TextPart(type="input_text", text=f"File {name}:\n{text}")

    async def _kept(self, file_id: str) -> tuple[str, str]:
        file = await self._services.uploads.get(self._tenant_id, file_id)
        name = PurePath(file.filename).name
        if file.uploaded:
            return name, await self._services.file_reader.text(
                self._tenant_id, name, await self._services.uploads.read(self._tenant_id, file_id)
            )
        return name, (await self._services.passages.file(self._tenant_id, file_id)).content

    async def _sent(self, part: FilePart) -> tuple[str, str]:
        return part.name, await self._services.file_reader.text(self._tenant_id, part.name, part.data)
