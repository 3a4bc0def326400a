"""Images in a request: the forms in which the APIs send them become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from agents.content_payload import picture_of
from inference.picture import Picture
from worker.wire import limits
from worker.wire.ignored import without_effect
from worker.wire.options import PromptCacheBreakpoint
from worker.wire.strict import Id, Strict

UNSUPPORTED_IMAGE = "unsupported_image"
FETCHES_NONE = "Images are not fetched from addresses: send the image itself as a data URL in base64."
USERS_ONLY = "Images can only be part of messages of the user and of results of tools."
# What the first bytes of a file say; what the sender says is not needed.
MEDIA_TYPES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


class ImagePart(Strict):
    """An image: included in the request, or a file stored on this server."""

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
    media_type = next((kind for begin, kind in MEDIA_TYPES.items() if data.startswith(begin)), None)
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


def _refuse(part: Any) -> Any:
    if isinstance(part, Mapping) and part.get("type") in ("input_image", "image_url", "image"):
        raise PydanticCustomError(UNSUPPORTED_IMAGE, USERS_ONLY)
    return part


# For a part of what is no message of a user and no result.
NoPicture = BeforeValidator(_refuse)


def check_role(role: str, parts: Sequence[object]) -> None:
    """Raises PydanticCustomError for an image in a message of another role than the user's."""
    if role != "user" and any(isinstance(part, ImagePart) for part in parts):
        raise PydanticCustomError(UNSUPPORTED_IMAGE, USERS_ONLY)
