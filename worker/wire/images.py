"""Images in a request, which no model here supports: all APIs reject them in the same way, naming their place."""

from __future__ import annotations

from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

UNSUPPORTED_IMAGE = "unsupported_image"
TYPES = frozenset({"input_image", "image_url", "image"})  # of responses, chat completions and messages
ADVICE = (  # a test compares the models with the catalogue
    "No model of this worker accepts images, and an answer that ignored one would be about something else. Describe it "
    "in words. In the catalogue, gemma-3-4b has weights for images, but only its text is served so far"
)


def _refuse(part: Any) -> Any:
    if isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind in TYPES:
        raise PydanticCustomError(UNSUPPORTED_IMAGE, ADVICE)
    return part


# For a part among several. An image is never fetched, stored or silently ignored.
NoPicture = BeforeValidator(_refuse)
