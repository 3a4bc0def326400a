"""Files in a request are replaced by their text before it becomes a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypeVar, cast
from uuid import UUID

from pydantic_core import PydanticCustomError

from agents.message import FunctionCall, Item, new_id
from retrieval.errors import FileNotFound, UnreadableFile
from retrieval.loaders.formats import bytes_max
from retrieval.loaders.job import Limits
from retrieval.loaders.pool import LoaderPool
from retrieval.loaders.source import checked
from worker.auth.secret import Seals, opened
from worker.errors import ApiError
from worker.wire import limits
from worker.wire.chat_request import ChatMessage, SpeakerMessage, ToolMessage
from worker.wire.items import CompactionTrigger, FunctionCallOutputItem, InputItem, ItemReference, MessageItem
from worker.wire.messages_content import GivenMessage, SaidMessage, ToolResultBlock
from worker.wire.parts import FilePart, ImagePart, TextPart, named
from worker.wire.strict import UNSUPPORTED_IMAGE, converted

if TYPE_CHECKING:
    from agents.store import ConversationStore
    from retrieval.store import PassageStore, UploadStore

Entry = TypeVar("Entry", bound=InputItem | ChatMessage | GivenMessage | SaidMessage)  # an entry of a request

# A book takes one or two seconds. Its client waits for a first token, but other streams wait for their next one.
READ_LIMITS = Limits(wall_s=20, cpu_s=20, niceness=5)
BLIND = (  # a test compares the models with the catalogue
    "No model of this worker sees images, and an answer that ignored one would be about something else. Describe it in "
    "words, or start the worker with a model that sees, such as gemma-3-4b, and its projector (--mmproj)."
)
ATTACHED = (FilePart, ImagePart)
# In the result of a tool, which the model itself called. All later requests contain it: a refusal would end the
# conversation.
SHOWN = "Error: the tool returned an image, which this model cannot see."


@dataclass(frozen=True, slots=True)
class Attachments:
    """Turns the entries of a request into items. Files are read concurrently with ingestion into stores. `sees`:
    whether a model of this worker sees images."""

    conversations: ConversationStore
    uploads: UploadStore
    passages: PassageStore
    loaders: LoaderPool
    seals: Seals
    sees: Callable[[], bool] = bool

    async def items(self, tenant_id: UUID, entries: Sequence[InputItem], param: str) -> tuple[Item, ...]:
        """New items with new ids: the client's ids may already be taken. Raises the errors of `read`."""
        read = await self.read(tenant_id, entries, param)
        references = [entry.id for entry in read if isinstance(entry, ItemReference)]
        stored = await self.conversations.find_items(tenant_id, references) if references else {}

        def made() -> tuple[Item, ...]:
            items = [
                _again(stored, entry, f"{param}[{i}].id") if isinstance(entry, ItemReference) else entry.item()
                for i, entry in enumerate(read)
                if not isinstance(entry, CompactionTrigger)  # the last one
            ]
            places = (f"{param}[{i}].encrypted_content" for i in range(len(items)))
            return tuple(opened(self.seals, tenant_id, item, place) for item, place in zip(items, places, strict=True))

        return await converted(len(read), made)

    async def read(self, tenant_id: UUID, entries: Sequence[Entry], param: str) -> Sequence[Entry]:
        """The entries, with each file replaced by its text. Where there is none, the same object.

        `param` is the field in which the client sent them. Raises ApiError 400 and 404 naming the part, and
        ReadersUnavailable.
        """
        attached = [part for entry in entries for part in _parts(entry) if _has_attachment(part)]
        if not attached:
            return entries
        if sum(isinstance(part, ATTACHED) for part in attached) > limits.FILES_MAX:
            message = f"A request may contain at most {limits.FILES_MAX} files and images."
            raise ApiError(400, message, param=param, code="too_many_files")
        return [await self._read(tenant_id, entry, f"{param}[{i}]") for i, entry in enumerate(entries)]

    async def _read(self, tenant_id: UUID, entry: Entry, param: str) -> Entry:
        parts = _parts(entry)
        if not any(map(_has_attachment, parts)):
            return entry
        name = "output" if isinstance(entry, FunctionCallOutputItem) else "content"
        by_tool = isinstance(entry, FunctionCallOutputItem | ToolMessage)
        read = [await self._part(tenant_id, part, f"{param}.{name}[{i}]", by_tool) for i, part in enumerate(parts)]
        return cast(Entry, entry.model_copy(update={name: read}))

    async def _part(self, tenant_id: UUID, part: object, param: str, by_tool: bool) -> object:
        match part:
            case FilePart():
                return await self._text(tenant_id, part, param)
            case ImagePart() if by_tool and not self.sees():
                return TextPart(type="input_text", text=SHOWN)
            case ImagePart():
                return await self._image(tenant_id, part, param)
            case ToolResultBlock():
                places = ((each, f"{param}.content[{i}]") for i, each in enumerate(part.content))
                read = [await self._part(tenant_id, each, place, by_tool=True) for each, place in places]
                return part.model_copy(update={"content": read})
        return part

    async def _image(self, tenant_id: UUID, part: ImagePart, param: str) -> ImagePart:
        """The image with its content, which can be decoded. Raises ApiError."""
        if not self.sees():
            raise _unseen(param, BLIND)
        try:
            if part.file_id:
                file = await self.uploads.get(tenant_id, part.file_id)
                if file.bytes > limits.IMAGE_BYTES_MAX:
                    raise UnreadableFile(f"is larger than {limits.IMAGE_BYTES_MAX // 10**6} MB; make it smaller")
                part = part.model_copy(update={"picture": named(await self.uploads.read(tenant_id, part.file_id))})
            await self.loaders.pixels(tenant_id, part.picture)
        except FileNotFound as error:
            message = f"There is no file with the id '{error.file_id}'."
            raise ApiError(404, message, param=f"{param}.file_id", code="not_found") from None
        except UnreadableFile as error:
            raise _unseen(param, f"The image {error}.") from None
        except PydanticCustomError as error:
            raise _unseen(param, str(error)) from None
        return part

    async def _text(self, tenant_id: UUID, part: FilePart, param: str) -> TextPart:
        try:
            if part.file_id:
                name, text = await self._stored(tenant_id, part.file_id)
            else:
                name, text = part.name, await text_of(self.loaders, tenant_id, part.name, part.data)
        except UnreadableFile as error:
            raise ApiError(400, f"The file '{part.name}' {error}.", param=param, code=error.code) from None
        except FileNotFound as error:
            message = f"There is no file with the id '{error.file_id}'."
            raise ApiError(404, message, param=f"{param}.file_id", code="not_found") from None
        if len(text) > limits.TEXT_CHARS_MAX:
            message = f"The file '{name}' has more than {limits.TEXT_CHARS_MAX} characters."
            raise ApiError(400, message, param=param, code="string_above_max_length")
        return TextPart(type="input_text", text=f"File {name}:\n{text}")

    async def _stored(self, tenant_id: UUID, file_id: str) -> tuple[str, str]:
        """Name and text of an uploaded or ingested file. Raises FileNotFound, UnreadableFile, ReadersUnavailable."""
        file = await self.uploads.get(tenant_id, file_id)
        name = PurePath(file.filename).name
        if file.uploaded:
            data = await self.uploads.read(tenant_id, file_id)
            return name, await text_of(self.loaders, tenant_id, name, data)
        return name, (await self.passages.file(tenant_id, file_id)).content


def _unseen(param: str, reason: str) -> ApiError:
    return ApiError(400, f"Invalid '{param}': {reason}", param=param, code=UNSUPPORTED_IMAGE)


async def text_of(loaders: LoaderPool, tenant_id: UUID, name: str, data: bytes) -> str:
    """The text of a file, extracted within READ_LIMITS; a tenant's files are read one at a time.

    Raises UnreadableFile, ReadersUnavailable.
    """
    path = Path(name)
    read = await loaders.read(path, checked(data, bytes_max(path)), READ_LIMITS, owner=tenant_id)
    return read.document.text


def _again(stored: Mapping[str, Item], reference: ItemReference, param: str) -> Item:
    """Raises ApiError 404."""
    if reference.id not in stored:
        message = f"There is no stored item with the id '{reference.id}'."
        raise ApiError(404, message, param=param, code="not_found")
    item = stored[reference.id]
    id = new_id(item.id.partition("_")[0])
    if isinstance(item, FunctionCall) and item.shape.form == "mcp" and item.call_id == item.id:
        return replace(item, id=id, call_id=id)
    return replace(item, id=id)


def _has_attachment(part: object) -> bool:
    if isinstance(part, ToolResultBlock):
        return any(isinstance(each, ATTACHED) for each in part.content)
    return isinstance(part, ATTACHED)


def _parts(entry: InputItem | ChatMessage | GivenMessage | SaidMessage) -> Sequence[object]:
    match entry:
        case MessageItem() | SpeakerMessage() | ToolMessage() | GivenMessage():
            return entry.content
        case FunctionCallOutputItem():
            return entry.output
    return ()
