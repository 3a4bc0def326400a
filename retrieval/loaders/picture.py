"""Pictures: PNG, JPEG, WebP, and the first frame of a GIF. Only the processes that parse files import this."""

from __future__ import annotations

import io
from math import sqrt

from PIL import Image, ImageOps, UnidentifiedImageError

from retrieval.errors import UnreadableFile

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
PIXELS_MAX = 50_000_000  # the cameras of most phones; three times as many bytes while it is decoded
# Encoders look at a million pixels or two. A larger picture is made smaller here, which bounds what the worker holds.
PIXELS_KEPT_MAX = 4_000_000


def load(data: bytes) -> tuple[int, int, bytes]:
    """Width, height, and the rows: three bytes a pixel. What is transparent becomes white. Raises UnreadableFile."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > PIXELS_MAX:
                raise UnreadableFile(f"has more than {PIXELS_MAX // 10**6} million pixels; make it smaller")
            size = _kept(image.width, image.height)
            image.draft("RGB", size)  # a JPEG can be decoded at a half, a quarter or an eighth of its size
            shown = ImageOps.exif_transpose(image)
            if shown.has_transparency_data:
                shown = shown.convert("RGBA")
                shown = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown)
            shown = shown.convert("RGB")
    except UnidentifiedImageError:
        raise UnreadableFile("is not a PNG, JPEG, WebP or GIF image") from None
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise UnreadableFile(f"is damaged: {error}") from None
    if (size := _kept(shown.width, shown.height)) != shown.size:
        shown = shown.resize(size, reducing_gap=2.0)
    return shown.width, shown.height, shown.tobytes()


def _kept(width: int, height: int) -> tuple[int, int]:
    scale = min(1.0, sqrt(PIXELS_KEPT_MAX / (width * height)))
    return max(1, int(width * scale)), max(1, int(height * scale))
