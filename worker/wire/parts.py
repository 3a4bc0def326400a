"""Content parts of a message as clients send them: text, files, and images, whose forms in the APIs become one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias

from pydantic import (
    BeforeValidator,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agents.payload import joined, picture_of
from inference.picture import Picture
from inference.prompt import PlacedPicture
from retrieval.loaders.formats import MEDIA_TYPES
from worker.wire import limits
from worker.wire.strict import (
    UNSUPPORTED_IMAGE,
    Echoed,
    Id,
    PromptCacheBreakpoint,
    Strict,
    Tagged,
    Text,
    only,
    type_of,
    up_to,
    without_effect,
)

FETCHES_NONE = "Images are not fetched from addresses: send the image itself as a data URL in base64."
SENDS_FILE = "Files are not fetched from addresses: send the file itself in base64, or upload it and send its id."
USERS_ONLY = "Images can only be part of messages of the user and of results of tools."
# What the first bytes of a file say; what the sender says is not needed.
SIGNATURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
SUFFIXES = {**MEDIA_TYPES, "text/plain": ".txt"}  # by the media type in a data URL, if the name has none


class ImagePart(Strict):
    """An image: included in the request, or a file stored on this server."""

    TAG: ClassVar = "image"

    type: Literal["input_image"]
    image_url: Annotated[str, StringConstraints(max_length=limits.IMAGE_URL_CHARS_MAX)] | None = None
    file_id: Id | None = None
    detail: Annotated[Any, without_effect("detail", "auto")] = None
    prompt_cache_breakpoint: PromptCacheBreakpoint = None

    @model_validator(mode="after")
    def _is_an_image(self) -> ImagePart:
        if (self.image_url is None) == (self.file_id is None):
            raise ValueError("an image needs either image_url, with a data URL, or file_id")
        if self.file_id is None:
            _ = self.picture
        return self

    @cached_property
    def picture(self) -> Picture:
        """The image of a data URL; its media type is that of its content. Raises PydanticCustomError."""
        url = self.image_url or ""
        if not url.startswith("data:"):
            raise PydanticCustomError(UNSUPPORTED_IMAGE, FETCHES_NONE)
        try:
            data = picture_of(url).data
        except ValueError:
            raise PydanticCustomError(UNSUPPORTED_IMAGE, "The data URL of an image must be in base64.") from None
        return named(data)


def named(data: bytes) -> Picture:
    """The picture in a file. Raises PydanticCustomError for a kind that is not read."""
    media_type = next((kind for begin, kind in SIGNATURES.items() if data.startswith(begin)), None)
    if media_type is None:
        raise PydanticCustomError(UNSUPPORTED_IMAGE, "Images can be PNG, JPEG, WebP or GIF files.")
    return Picture.of(media_type, data)


def as_input_image(part: Any) -> Any:
    """An image of chat completions or of messages in the form of responses; anything else as it is."""
    match part:
        case {"type": "image_url", "image_url": {"url": url, **more}, **rest}:
            return {"type": "input_image", "image_url": url, **more, **rest}
        case {"type": "image_url", "image_url": str(url), **rest}:
            return {"type": "input_image", "image_url": url, **rest}
        case {"type": "image", "source": {"type": "base64", "media_type": str(media_type), "data": str(data)}, **rest}:
            return {"type": "input_image", "image_url": f"data:{media_type};base64,{data}", **rest}
        case {"type": "image", "source": {"type": "file", "file_id": file_id}, **rest}:
            return {"type": "input_image", "file_id": file_id, **rest}
        case {"type": "image", "source": {"type": "url", "url": url}, **rest}:
            return {"type": "input_image", "image_url": url, **rest}
    return part


def check_role(role: str, parts: Sequence[object]) -> None:
    """Raises PydanticCustomError for an image in a message of another role than the user's."""
    if role != "user" and any(isinstance(part, ImagePart) for part in parts):
        raise PydanticCustomError(UNSUPPORTED_IMAGE, USERS_ONLY)


class TextPart(Strict):
    """A piece of text."""

    type: Literal["input_text", "text"]
    text: Text
    prompt_cache_breakpoint: PromptCacheBreakpoint = None
    cache_control: Annotated[Any, without_effect("cache_control")] = None  # for other servers: ours needs no marks


class SaidPart(Echoed):
    """Text from an earlier answer, with its annotations."""

    type: Literal["output_text", "text"]
    text: Text


class RefusalPart(Echoed):
    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        return self.refusal


class FilePart(Strict):
    """A file whose text the model reads: included in the request, or stored on this server."""

    TAG: ClassVar = "file"  # as the key that chat completions have: a missing value is told by it

    type: Literal["input_file"]
    filename: Annotated[str, StringConstraints(min_length=1, max_length=limits.FILENAME_CHARS_MAX)] | None = None
    file_data: str | None = None
    file_id: Id | None = None
    file_url: Annotated[Any, only(None, instead=SENDS_FILE)] = None
    detail: Annotated[Any, without_effect("detail")] = None
    prompt_cache_breakpoint: PromptCacheBreakpoint = None

    @field_validator("file_data")
    @classmethod
    def _is_base64(cls, value: str | None) -> str | None:
        if value is not None:
            _decoded(value)
        return value

    @model_validator(mode="after")
    def _has_a_source(self) -> FilePart:
        if (self.file_data is None) == (self.file_id is None):
            raise ValueError("a file needs either file_data or file_id")
        return self

    @property
    def data(self) -> bytes:
        return _decoded(self.file_data or "")

    @property
    def name(self) -> str:
        """With a suffix that determines the reader, if the name or the data URL has one."""
        name = PurePath(self.filename or "file").name or "file"
        media_type = (self.file_data or "").removeprefix("data:").partition(";")[0]
        return name if PurePath(name).suffix else name + SUFFIXES.get(media_type, "")


def _decoded(file_data: str) -> bytes:
    """The bytes of base64 text, plain or in a data URL."""
    body = file_data.partition(",")[2] if file_data.startswith("data:") else file_data
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        raise ValueError("file_data must be base64 text or a data URL") from None


def tag_of(part: Any) -> Any:
    kind = type_of(part)
    return kind.removeprefix("input_") if isinstance(kind, str) else None


Part: TypeAlias = Annotated[
    SaidPart | TextPart | RefusalPart | FilePart | ImagePart,
    Tagged("A part must have the type text, image or file, as in the API reference.", tag_of),
]


def as_parts(content: Any) -> Any:
    """A string as a list of one text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        got = "null" if content is None else type(content).__name__
        raise PydanticCustomError("content_type", "Expected a string or a list of parts, but got {got}.", {"got": got})
    return content


def _as_in_responses(content: Any) -> Any:
    """Files and images of chat completions, which nest them one level deeper, in the form of responses."""
    return [_flattened(part) for part in content] if isinstance(content, list) else content


def _flattened(part: Any) -> Any:
    match part:
        case {"type": "file", "file": {} as file, **rest}:
            return {"type": "input_file", **file, **rest}
    return as_input_image(part)


_Several = (up_to(limits.PARTS_MAX), BeforeValidator(as_parts))
Content: TypeAlias = Annotated[list[Part], *_Several]
ChatContent: TypeAlias = Annotated[list[Part], *_Several, BeforeValidator(_as_in_responses)]
SaidText: TypeAlias = Annotated[TextPart | SaidPart | RefusalPart, Tagged("Only text parts are read here.", tag_of)]
SaidContent: TypeAlias = Annotated[list[SaidText], *_Several]


class Said(Protocol):
    @property
    def text(self) -> str: ...


def shown(parts: Sequence[Said | FilePart | ImagePart], between: str = "\n") -> tuple[str, tuple[PlacedPicture, ...]]:
    """The text, and the pictures in it. Files were read before (see `worker.runs.attachments`) and replaced by their
    text."""
    assert not any(isinstance(part, FilePart) for part in parts), "files are read before items are made"
    said = (part for part in parts if not isinstance(part, FilePart))
    return joined([part.picture if isinstance(part, ImagePart) else part.text for part in said], between)
