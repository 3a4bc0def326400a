"""Content parts of a message as clients send them: text and files."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import (
    BeforeValidator,
    Discriminator,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agents.content_payload import joined
from inference.prompt import PlacedPicture
from retrieval.loaders.formats import MEDIA_TYPES
from worker.wire import limits
from worker.wire.ignored import without_effect
from worker.wire.images import ImagePart, as_input_image
from worker.wire.options import PromptCacheBreakpoint
from worker.wire.strict import UNSUPPORTED, Echoed, Id, Strict, Text, Unsupported, up_to

SUFFIXES = {**MEDIA_TYPES, "text/plain": ".txt"}  # by the media type in a data URL, if the name has none


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

    type: Literal["input_file"]
    filename: Annotated[str, StringConstraints(min_length=1, max_length=limits.FILENAME_CHARS_MAX)] | None = None
    file_data: str | None = None
    file_id: Id | None = None
    file_url: Unsupported = None  # nothing is fetched on a client's behalf
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


WRITTEN = {"input_text": "text", "text": "text", "output_text": "said", "refusal": "refusal"}
SAID = {**WRITTEN, "text": "said"}
RICH = {**WRITTEN, "input_file": "file", "input_image": "image"}


def _told_apart_by(tags: Mapping[str, str], advice: str) -> Discriminator:
    """A discriminator by the type of a part. `advice` is for clients that send another type."""

    def tag(part: Any) -> str | None:
        return tags.get(str(part.get("type") if isinstance(part, dict) else getattr(part, "type", None)))

    return Discriminator(tag, custom_error_type=UNSUPPORTED, custom_error_message=advice)


ONLY_TEXT = "Only text parts are read here."
_Text: TypeAlias = (
    Annotated[TextPart, Tag("text")] | Annotated[SaidPart, Tag("said")] | Annotated[RefusalPart, Tag("refusal")]
)
Part: TypeAlias = Annotated[
    _Text | Annotated[FilePart, Tag("file")] | Annotated[ImagePart, Tag("image")],
    _told_apart_by(RICH, "A part must have the type text, image or file, as in the API reference."),
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
TextContent: TypeAlias = Annotated[list[Annotated[_Text, _told_apart_by(WRITTEN, ONLY_TEXT)]], *_Several]
SaidContent: TypeAlias = Annotated[list[Annotated[_Text, _told_apart_by(SAID, ONLY_TEXT)]], *_Several]


class Said(Protocol):
    @property
    def text(self) -> str: ...


def shown(parts: Sequence[Said | FilePart | ImagePart], between: str = "\n") -> tuple[str, tuple[PlacedPicture, ...]]:
    """The text, and the pictures in it. Files were read before (see `worker.runs.attachments`) and replaced by their
    text."""
    assert not any(isinstance(part, FilePart) for part in parts), "files are read before items are made"
    said = (part for part in parts if not isinstance(part, FilePart))
    return joined([part.picture if isinstance(part, ImagePart) else part.text for part in said], between)
