"""Pictures come back as pixels, upright and on white, or as the reason why not."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from PIL import Image

from inference.picture import Picture, Pixels
from retrieval.errors import UnreadableFile
from retrieval.loaders.picture import PIXELS_KEPT_MAX
from retrieval.loaders.pool import LoaderPool

ME = "me"
RED, WHITE = (255, 0, 0), (255, 255, 255)


@pytest.fixture
async def pool() -> AsyncIterator[LoaderPool]:
    pool = LoaderPool()
    yield pool
    pool.close()


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


async def pixels(pool: LoaderPool, data: bytes) -> Pixels:
    return await pool.pixels(ME, Picture.of("", data))


def color(seen: Pixels, x: int, y: int) -> tuple[int, ...]:
    at = 3 * (y * seen.width + x)
    return tuple(seen.rgb[at : at + 3])


async def test_every_kind_of_picture_is_read_and_only_the_first_frame_of_a_gif(pool: LoaderPool) -> None:
    red, blue = (Image.new("RGB", (30, 20), name) for name in ("red", "blue"))
    for kind, options in (("PNG", {}), ("JPEG", {}), ("WEBP", {"lossless": True}), ("GIF", {})):
        seen = await pixels(pool, encoded(red, kind, **options))
        assert (seen.width, seen.height, len(seen.rgb)) == (30, 20, 1800)
        assert color(seen, 29, 19) == pytest.approx(RED, abs=2)
    moving = await pixels(pool, encoded(red, "GIF", save_all=True, append_images=[blue]))
    assert color(moving, 0, 0) == RED


async def test_what_is_transparent_is_white_and_a_turned_photo_is_upright(pool: LoaderPool) -> None:
    glass = await pixels(pool, encoded(Image.new("RGBA", (2, 2), (255, 0, 0, 0)), "PNG"))
    assert color(glass, 1, 1) == WHITE
    photo = Image.new("RGB", (32, 16), "red")
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation: a quarter to the right
    seen = await pixels(pool, encoded(photo, "JPEG", exif=turned))
    assert (seen.width, seen.height) == (16, 32)


async def test_a_large_picture_is_made_smaller_and_one_that_is_far_too_large_refused(pool: LoaderPool) -> None:
    for kind in ("PNG", "JPEG"):
        seen = await pixels(pool, encoded(Image.new("L", (4000, 2000)), kind))
        assert PIXELS_KEPT_MAX / 2 < seen.width * seen.height <= PIXELS_KEPT_MAX
        assert seen.width == pytest.approx(2 * seen.height, abs=2)
    with pytest.raises(UnreadableFile, match="more than 50 million pixels"):
        await pixels(pool, encoded(Image.new("1", (10_000, 5_001)), "PNG"))
    with pytest.raises(UnreadableFile, match="more than 50 times as long"):
        await pixels(pool, encoded(Image.new("1", (51, 1)), "PNG"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"hello", "is not a PNG, JPEG, WebP or GIF image"),
        (encoded(Image.new("RGB", (8, 8)), "BMP"), "is not a PNG, JPEG, WebP or GIF image"),
        (encoded(Image.effect_noise((64, 64), 50), "PNG")[:500], "is damaged"),
        (encoded(Image.effect_noise((64, 64), 50), "JPEG")[:500], "is damaged"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "is not a PNG|is damaged"),
    ],
)
async def test_what_is_no_picture_is_refused_with_the_reason(pool: LoaderPool, data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableFile, match=reason):
        await pixels(pool, data)


async def test_the_newest_pictures_of_a_tenant_are_not_decoded_again(pool: LoaderPool) -> None:
    data = [encoded(Image.new("RGB", (10, 10), name), "PNG") for name in ("red", "green", "blue")]
    pool._pixels.size_max = 600
    first = [await pixels(pool, each) for each in data[:2]]
    assert [await pixels(pool, each) is known for each, known in zip(data, first, strict=False)] == [True, True]
    assert await pool.pixels("somebody", Picture.of("", data[1])) is not first[1]
    await pixels(pool, data[2])
    assert await pixels(pool, data[0]) is not first[0]
