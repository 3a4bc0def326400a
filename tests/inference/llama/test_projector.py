"""A projector's embeddings are those of llama.cpp's own helper, and what is wrong with a file is told."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.bundled import CHAT_MODEL
from inference.errors import ModelNotLoaded, UnseenPicture
from inference.llama import LlamaContext, LlamaModel, Projector
from inference.llama.library import get_logits, mtmd
from inference.llama.projector import mended
from inference.picture import IDS_END, Picture, PictureEmbeddings, PictureTokens, Pixels
from tests.inference.hybrids import write_hybrid
from tests.inference.projectors import KINDS, Kind, picture, write_projector, write_with_marks

QUESTION = "\nWhat is in it?"
SIZES = [(128, 128), (300, 200), (64, 500), (7, 3)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projectors")
    write_with_marks(CHAT_MODEL, folder / "model.gguf")
    for kind in KINDS:
        write_projector(folder / f"{kind}.gguf", kind, 384)
    return folder


@pytest.fixture(scope="module")
def model(files: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(files / "model.gguf")
    yield model
    model.close()


@pytest.fixture(scope="module")
def projectors(files: Path, model: LlamaModel) -> Iterator[Mapping[Kind, Projector]]:
    made = {kind: Projector(files / f"{kind}.gguf", model, threads=1) for kind in KINDS}
    yield made
    for projector in made.values():
        projector.close()


def context_of(model: LlamaModel) -> LlamaContext:
    return LlamaContext(model, slots=1, context=512, rows_max=128, threads=1)


def ours(model: LlamaModel, projector: Projector, *pictures: Picture) -> NDArray[np.float32]:
    """The logits behind the pictures and a question."""
    context, position = context_of(model), 0
    for seen in pictures:
        parts = iter(projector.encode(seen))
        for piece in projector.layout(seen):
            ids = piece.ids if isinstance(piece, PictureTokens) else piece
            embeddings = (
                PictureEmbeddings(next(parts), piece.bidirectional) if isinstance(piece, PictureTokens) else None
            )
            context.decode([Chunk(0, position, ids, 0, embeddings is not None, embeddings)])
            position += len(ids)
    question = model.tokenize(QUESTION, parse_special=False)
    logits: NDArray[np.float32] = context.decode([Chunk(0, position, question)])[0].copy()
    context.close()
    return logits


def theirs(model: LlamaModel, projector: Projector, *pictures: Picture) -> NDArray[np.float32]:
    """The same by the library's own helper."""
    library, context = mtmd(), context_of(model)
    text = b"<__media__>" * len(pictures) + QUESTION.encode()
    shown = [seen.pixels for seen in pictures if seen.pixels]
    bytes_ = [ctypes.cast(ctypes.c_char_p(each.rgb), ctypes.POINTER(ctypes.c_uint8)) for each in shown]
    bitmaps = [library.mtmd_bitmap_init(each.width, each.height, rgb) for each, rgb in zip(shown, bytes_, strict=True)]
    chunks, past = library.mtmd_input_chunks_init(), ctypes.c_int32()
    asked = library.mtmd_input_text(text, len(text), False, True)
    array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
    assert library.mtmd_tokenize(projector._context, chunks, ctypes.byref(asked), array, len(bitmaps)) == 0
    count, none = library.mtmd_input_chunks_size(chunks), library.mtmd_helper_post_decode_callback()
    for chunk in (library.mtmd_input_chunks_get(chunks, at) for at in range(count)):
        at = past.value, 0, 128
        here = projector._context, context._context, chunk
        if projector._is_text(chunk):
            assert library.mtmd_helper_eval_chunk_single(*here, *at, True, ctypes.byref(past)) == 0
            continue
        embeddings = projector._encoded(chunk)  # the library's own may lack the ends of rows
        rows = embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        assert library.mtmd_helper_decode_image_chunk(*here, rows, *at, ctypes.byref(past), none, None) == 0
    pointer = get_logits(context._context)
    logits = np.ctypeslib.as_array((ctypes.c_float * model.vocabulary_size).from_address(pointer)).copy()
    library.mtmd_input_chunks_free(chunks)
    for bitmap in bitmaps:
        library.mtmd_bitmap_free(bitmap)
    context.close()
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_of_any_size_are_computed_as_by_the_librarys_own_helper(
    model: LlamaModel, projectors: Mapping[Kind, Projector], kind: Kind
) -> None:
    alone = [ours(model, projectors[kind], picture(1, *size)) for size in SIZES]
    for size, logits in zip(SIZES, alone, strict=True):
        assert np.allclose(logits, theirs(model, projectors[kind], picture(1, *size)), atol=1e-3)
    two = picture(2), picture(3, 300, 200)
    both = ours(model, projectors[kind], *two)
    assert np.allclose(both, theirs(model, projectors[kind], *two), atol=1e-3)
    assert np.abs(both - ours(model, projectors[kind], *reversed(two))).max() > 0.1


def test_a_large_picture_has_parts_with_the_marks_of_the_model_between_them(
    model: LlamaModel, projectors: Mapping[Kind, Projector]
) -> None:
    layout = projectors["idefics3"].layout(picture(1, 300, 200))
    texts = [model.detokenize(piece) for piece in layout if not isinstance(piece, PictureTokens)]
    parts = [piece for piece in layout if isinstance(piece, PictureTokens)]
    assert len(parts) == 1 + 2 * 2
    assert len({part.ids for part in parts}) == len(parts)
    assert "row_2_col_1" in "".join(texts)
    assert [part.bidirectional for part in parts] == [False] * len(parts)
    assert all(
        piece.bidirectional for piece in projectors["gemma3"].layout(picture(1)) if isinstance(piece, PictureTokens)
    )


def test_ids_are_drawn_from_the_picture_and_the_projector_outside_of_the_vocabulary(
    model: LlamaModel, projectors: Mapping[Kind, Projector]
) -> None:
    def ids(seed: int, kind: Kind = "gemma3") -> tuple[int, ...]:
        return next(piece.ids for piece in projectors[kind].layout(picture(seed)) if isinstance(piece, PictureTokens))

    assert ids(1) == ids(1)
    assert len({ids(1)[0], ids(2)[0], ids(1, "pixtral")[0]}) == 3
    assert model.vocabulary_size <= min(ids(1))
    assert max(ids(1)) < IDS_END


def test_the_ends_of_rows_that_the_library_leaves_to_chance_are_mended() -> None:
    row_end = np.array([1, 2, 3], np.float32)
    rows = np.array([[5, 6, 7], [1, np.nan, 3], [np.nan] * 3, [4, np.nan, 3]], np.float32)
    whole = mended(rows.copy(), row_end)
    assert whole[:3].tolist() == [[5, 6, 7], [1, 2, 3], [1, 2, 3]]
    assert np.isnan(whole[3, 1]), "not the end of a row"
    assert np.isnan(mended(rows.copy(), None)[1:]).any(axis=1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_size_ends_the_process(projectors: Mapping[Kind, Projector], kind: Kind) -> None:
    for width, height in ((1, 1), (1, 50), (50, 1), (2, 99), (2000, 40), (40, 2000), (1999, 2001)):
        shown = Picture("", b"", "", Pixels(width, height, b""))
        assert any(isinstance(piece, PictureTokens) for piece in projectors[kind].layout(shown))
    assert all(
        np.isfinite(part).all() for size in ((1, 1), (1, 50)) for part in projectors[kind].encode(picture(1, *size))
    )
    with pytest.raises(UnseenPicture, match="more than 50 times as long"):
        projectors[kind].layout(Picture("", b"", "", Pixels(1, 51, b"")))


def test_a_projector_that_does_not_suit_is_refused_in_one_line(files: Path, model: LlamaModel, tmp_path: Path) -> None:
    bundled = LlamaModel.load(CHAT_MODEL)
    flat = LlamaModel.load(write_hybrid(tmp_path / "flat.gguf", "qwen35"))
    narrow = write_projector(tmp_path / "narrow.gguf", "gemma3", flat.dimensions)
    for path, beside, reason in (
        (tmp_path / "none.gguf", model, "no projector at"),
        (CHAT_MODEL, model, "is no projector for"),
        (narrow, model, r"mismatch between text model \(n_embd = 384\) and mmproj"),
        (narrow, flat, "positions in two dimensions"),
        (files / "idefics3.gguf", bundled, "has no tokens for the marks that"),
    ):
        with pytest.raises(ModelNotLoaded, match=reason) as refused:
            Projector(path, beside, threads=1)
        assert "\n" not in str(refused.value)
    bundled.close()
    flat.close()
