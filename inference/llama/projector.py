"""A multimodal projector: the encoder that turns pictures into embeddings for a model, by llama.cpp's library mtmd.

The library aborts the process on what its authors hold impossible. Sizes are bounded here for that reason.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.errors import InferenceError, ModelNotLoaded, UnseenPicture
from inference.llama.library import complaints, end_compute_threads, last_complaint, mtmd
from inference.llama.state import digest_of_weights
from inference.llama.weights import LlamaModel
from inference.picture import ASPECT_MAX, BIDIRECTIONAL_TOKENS_MAX, Layout, Picture, PictureTokens, Pixels

MARK = b"<__media__>"
PROBES = (64, 64), (2000, 1000)  # of one part, and of several where there can be several


class Projector:
    """Loaded beside a model, whose vocabulary and dimensions it depends on. Raises ModelNotLoaded."""

    def __init__(self, path: Path, model: LlamaModel, threads: int) -> None:
        if not path.is_file():
            raise ModelNotLoaded(f"no projector at {path}")
        library = self._library = mtmd()
        parameters = library.mtmd_context_params_default()
        parameters.use_gpu = model.on_gpu
        parameters.n_threads = threads
        parameters.print_timings = parameters.warmup = False
        with complaints() as said:
            self._context = library.mtmd_init_from_file(str(path).encode(), model.handle, parameters)
        end_compute_threads()
        if not self._context:
            raise ModelNotLoaded(
                f"{path.name} is no projector for {model.path.name}: {' '.join(' '.join(said).split())}"
            )
        self._vocabulary = model.vocabulary_size
        self._identity = digest_of_weights(path)
        self._row_end = _row_end(path)
        self._bidirectional = bool(library.mtmd_decode_use_non_causal(self._context, None))
        try:
            self._check(path, model)
        except ModelNotLoaded:
            self.close()
            raise
        self._dimensions = model.input_dimensions

    def _check(self, path: Path, model: LlamaModel) -> None:
        if not self._library.mtmd_support_vision(self._context):
            raise ModelNotLoaded(f"{path.name} has no encoder for images")
        if self._library.mtmd_decode_use_mrope(self._context):
            raise ModelNotLoaded(
                f"{model.path.name} gives the tokens of an image positions in two dimensions (M-RoPE), which is not "
                "supported: start it without its projector to use it for text"
            )
        for width, height in PROBES:
            layout = self.layout(Picture("", b"", "", Pixels(width, height, b"")))
            if any(token < 0 for piece in layout if not isinstance(piece, PictureTokens) for token in piece):
                raise ModelNotLoaded(
                    f"{model.path.name} has no tokens for the marks that {path.name} puts around images"
                )

    def close(self) -> None:
        if self._context:
            self._library.mtmd_free(self._context)
            self._context = None

    def layout(self, picture: Picture) -> Layout:
        layout: list[PictureTokens | tuple[int, ...]] = []
        part = 0
        with self._chunks(picture, with_pixels=False) as chunks:
            for chunk in chunks:
                if self._is_text(chunk):
                    count = ctypes.c_size_t()
                    tokens = self._library.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
                    layout.append(tuple(tokens[: count.value]))
                    continue
                length = self._library.mtmd_input_chunk_get_n_tokens(chunk)
                if self._bidirectional and length > BIDIRECTIONAL_TOKENS_MAX:
                    raise UnseenPicture(f"an image has {length} tokens, more than fit a step")
                layout.append(
                    PictureTokens.of(
                        picture, part, length, self._vocabulary, self._identity, bidirectional=self._bidirectional
                    )
                )
                part += 1
        return layout

    def encode(self, picture: Picture) -> list[NDArray[np.float32]]:
        """The embeddings of each part. They are the same bit by bit whatever else is computed."""
        with self._chunks(picture, with_pixels=True) as chunks:
            parts = [self._encoded(chunk) for chunk in chunks if not self._is_text(chunk)]
        end_compute_threads()  # this thread's would keep the engine's from spinning
        return parts

    def _encoded(self, chunk: Any) -> NDArray[np.float32]:
        if self._library.mtmd_encode_chunk(self._context, chunk):
            raise InferenceError(f"an image could not be encoded: {last_complaint()}")
        shape = (self._library.mtmd_input_chunk_get_n_tokens(chunk), self._dimensions)
        pointer = ctypes.cast(self._library.mtmd_get_output_embd(self._context), ctypes.POINTER(ctypes.c_float))
        embeddings = mended(np.ctypeslib.as_array(pointer, shape).copy(), self._row_end)
        if not np.isfinite(embeddings).all():
            raise InferenceError("the encoder computed no numbers for an image")
        return embeddings

    def _is_text(self, chunk: Any) -> bool:
        return bool(self._library.mtmd_input_chunk_get_type(chunk) == self._library.MTMD_INPUT_CHUNK_TYPE_TEXT)

    @contextmanager
    def _chunks(self, picture: Picture, *, with_pixels: bool) -> Iterator[list[Any]]:
        """What the library makes of a picture; without pixels, only how many tokens that is. Raises UnseenPicture."""
        library, pixels = self._library, picture.pixels
        if pixels is None:
            raise UnseenPicture("an image was not decoded")
        if pixels.is_thin:
            raise UnseenPicture(f"an image is more than {ASPECT_MAX} times as long as it is wide")
        data = ctypes.cast(ctypes.c_char_p(pixels.rgb), ctypes.POINTER(ctypes.c_uint8)) if with_pixels else None
        bitmap = library.mtmd_bitmap_init(pixels.width, pixels.height, data)
        bitmaps = (library.mtmd_bitmap_p_ctypes * 1)(bitmap)
        text = library.mtmd_input_text(MARK, len(MARK), False, True)
        chunks = library.mtmd_input_chunks_init()
        try:
            if library.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1):
                raise UnseenPicture(f"the model's encoder refuses an image: {last_complaint()}")
            yield [library.mtmd_input_chunks_get(chunks, i) for i in range(library.mtmd_input_chunks_size(chunks))]
        finally:
            library.mtmd_input_chunks_free(chunks)
            library.mtmd_bitmap_free(bitmap)


def _row_end(path: Path) -> NDArray[np.float32] | None:
    """The vector at the end of each row of a picture, for projectors that have one (Pixtral's)."""
    from gguf import GGUFReader  # slow to import, and few models see
    from gguf.quants import dequantize

    tensor = next((each for each in GGUFReader(path).tensors if each.name == "v.token_embd.img_break"), None)
    return None if tensor is None else dequantize(tensor.data, tensor.tensor_type).reshape(-1)


def mended(embeddings: NDArray[np.float32], row_end: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """With all ends of rows. llama.cpp makes them by adding `row_end` to unused memory times zero, and what that memory
    held may be no number: then neither is its product with zero."""
    if row_end is not None:
        nothing = np.isnan(embeddings)
        ends = (nothing | (embeddings == row_end)).all(axis=1)
        embeddings[ends] = row_end
    return embeddings
