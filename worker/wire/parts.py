"""Parts of a message's content as callers send them: text, pictures and files."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from retrieval.loaders.formats import MEDIA_TYPES
from worker.wire import limits
from worker.wire.strict import UNSUPPORTED, Id, Ignored, Strict, Text, Unsupported

PICTURE = "[An image]"  # all that a model which reads only text can be told of one
SUFFIXES = {**MEDIA_TYPES, "text/plain": ".txt"}  # by the media type in a data URL, where the name has none


class TextPart(Strict):
    """Text that somebody wrote. Annotations and logprobs come back from clients that return what they were sent."""

    type: Literal["input_text", "output_text", "text"]
    text: Text
    annotations: Ignored = None
    logprobs: Ignored = None
    parsed: Ignored = None
    prompt_cache_breakpoint: Unsupported = None


class RefusalPart(Strict):
    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        return self.refusal


def _address(value: str | None) -> str | None:
    if value is not None and not value.startswith(("data:image/", "https://", "http://")):
        raise ValueError("image_url must be a data URL of an image or a web address")
    return value


class ImagePart(Strict):
    """A picture. The model reads text, so it learns that one was there; nothing is fetched or kept."""

    type: Literal["input_image"]
    image_url: Annotated[str | None, AfterValidator(_address)] = None
    file_id: Id | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    prompt_cache_breakpoint: Unsupported = None

    @model_validator(mode="after")
    def _has_a_source(self) -> ImagePart:
        if (self.image_url is None) == (self.file_id is None):
            raise ValueError("an image needs either image_url or file_id")
        return self

    @property
    def text(self) -> str:
        return PICTURE


class FilePart(Strict):
    """A file of which the model reads the text: one that comes along, or one that is kept here."""

    type: Literal["input_file"]
    filename: Annotated[str, StringConstraints(min_length=1, max_length=limits.FILENAME_CHARS_MAX)] | None = None
    file_data: str | None = None
    file_id: Id | None = None
    file_url: Unsupported = None  # nothing is fetched on a caller's behalf
    detail: Ignored = None
    prompt_cache_breakpoint: Unsupported = None

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
        """With an end that says how to read it, where the name or the data URL tells."""
        name = PurePath(self.filename or "file").name or "file"
        media_type = (self.file_data or "").removeprefix("data:").partition(";")[0]
        return name if PurePath(name).suffix else name + SUFFIXES.get(media_type, "")


def _decoded(file_data: str) -> bytes:
    """The bytes of base64 text, of a data URL or plain."""
    body = file_data.partition(",")[2] if file_data.startswith("data:") else file_data
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        raise ValueError("file_data must be base64 text or a data URL") from None


TAGS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
RICH_TAGS = {**TAGS, "input_image": "image", "input_file": "file"}


def _kind_of(part: Any) -> str:
    return str(part.get("type") if isinstance(part, dict) else getattr(part, "type", None))


SpokenPart: TypeAlias = Annotated[
    Annotated[TextPart, Tag("text")] | Annotated[RefusalPart, Tag("refusal")],
    Discriminator(
        lambda part: TAGS.get(_kind_of(part)),
        custom_error_type=UNSUPPORTED,
        custom_error_message="This model reads only text: send text parts.",
    ),
]
Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[RefusalPart, Tag("refusal")]
    | Annotated[ImagePart, Tag("image")]
    | Annotated[FilePart, Tag("file")],
    Discriminator(
        lambda part: RICH_TAGS.get(_kind_of(part)),
        custom_error_type=UNSUPPORTED,
        custom_error_message="A part must have the type input_text, input_image, input_file, output_text or refusal.",
    ),
]


def _as_parts(content: Any) -> Any:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


SpokenContent: TypeAlias = Annotated[list[SpokenPart], BeforeValidator(_as_parts), Field(max_length=limits.PARTS_MAX)]
Content: TypeAlias = Annotated[list[Part], BeforeValidator(_as_parts), Field(max_length=limits.PARTS_MAX)]


def joined(parts: Sequence[Part], between: str) -> str:
    """What was said. Files are read before (see `worker.attachments`), which leaves their text in their place."""
    assert not any(isinstance(part, FilePart) for part in parts), "files are read before items are made"
    return between.join(part.text for part in parts if not isinstance(part, FilePart))
