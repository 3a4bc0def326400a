"""Text with pictures in it, in the JSON shape of the public contract: parts.

A text begins a line behind another text, not behind a picture, as in llama-server.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from inference.picture import Picture
from inference.prompt import PlacedPicture


def content_payload(text: str, pictures: Sequence[PlacedPicture]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    begin = 0
    for placed in pictures:
        if before := text[begin : placed.at]:
            parts.append({"type": "input_text", "text": before})
        data = base64.b64encode(placed.picture.data).decode()
        url = f"data:{placed.picture.media_type};base64,{data}"
        parts.append({"type": "input_image", "image_url": url, "detail": "auto"})
        begin = placed.at
    if (rest := text[begin:]) or not parts:
        parts.append({"type": "input_text", "text": rest})
    return parts


def content_of(parts: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[PlacedPicture, ...]]:
    """The inverse of `content_payload`. Raises KeyError and ValueError for what is none."""
    if not parts:
        raise ValueError("an item has parts")
    return joined([part["text"] if "text" in part else picture_of(part["image_url"]) for part in parts])


def joined(parts: Sequence[str | Picture], between: str = "\n") -> tuple[str, tuple[PlacedPicture, ...]]:
    """One text, and the places of the pictures in it. `between` stands between two texts."""
    text, pictures = "", list[PlacedPicture]()
    for before, part in zip([None, *parts], parts, strict=False):
        if isinstance(part, Picture):
            pictures.append(PlacedPicture(len(text), part))
        else:
            text += between + part if isinstance(before, str) else part
    return text, tuple(pictures)


def picture_of(url: str) -> Picture:
    """The picture in a data URL. Raises ValueError for another URL, and for what is not base64."""
    head, comma, data = url.partition(",")
    media_type, _, coding = head.removeprefix("data:").partition(";")
    if not comma or not head.startswith("data:") or coding != "base64":
        raise ValueError("not a data URL in base64")
    return Picture.of(media_type, base64.b64decode(data, validate=True))
