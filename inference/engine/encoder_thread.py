"""Pictures of running requests on their way through the encoder, which takes up to seconds on a CPU for each.

It has a thread of its own: the streams of others go on, and the text before a picture is computed meanwhile. Only the
engine's thread calls what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.errors import InferenceError
from inference.picture import Picture, PictureEmbeddings, VisionEncoder
from inference.request import Request
from inference.trace import now_ns

# A tenant and a picture: nobody learns from the time it takes that another tenant sent the same one.
_Key: TypeAlias = tuple[str, str]


class EncoderThread:
    def __init__(self, encoder: VisionEncoder, wake: Callable[[], None]) -> None:
        """`wake` is called on another thread when a picture is encoded."""
        self._encoder, self._wake = encoder, wake
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._coming: dict[_Key, Future[tuple[list[NDArray[np.float32]], int]]] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._coming)

    def serve(self, requests: Iterable[Request]) -> list[tuple[Request, InferenceError]]:
        """Give each request the embeddings of its next picture, or have it encoded: one at a time, which bounds their
        memory. Returns the requests whose picture cannot be encoded. What nobody waits for any more is dropped."""
        wanted, failed = set[_Key](), list[tuple[Request, InferenceError]]()
        for request in requests:
            placed = request.next_picture
            for start in [start for start in request.embeddings if placed is None or start < placed.start]:
                del request.embeddings[start]
            if placed is None or placed.start in request.embeddings:
                continue
            key = request.scope.tenant, placed.tokens.picture.digest
            if key not in self._coming:
                self._coming[key] = coming = self._thread.submit(self._encoded, placed.tokens.picture)
                coming.add_done_callback(lambda _: self._wake())
            coming = self._coming[key]
            if not coming.done():
                wanted.add(key)
            elif (error := coming.exception()) is not None:
                failed.append((request, error if isinstance(error, InferenceError) else InferenceError(str(error))))
            else:
                parts, took_ns = coming.result()
                request.spent.sight_ns += took_ns
                self._give(request, placed.tokens.picture.digest, parts)
        for key in self._coming.keys() - wanted:
            self._coming.pop(key).cancel()
        return failed

    @staticmethod
    def _give(request: Request, digest: str, parts: list[NDArray[np.float32]]) -> None:
        """All parts of a picture at once: they were encoded together."""
        for placed in request.pictures:
            tokens = placed.tokens
            if placed.end > request.computed and tokens.picture.digest == digest:
                request.embeddings[placed.start] = PictureEmbeddings(parts[tokens.part], tokens.bidirectional)

    def _encoded(self, picture: Picture) -> tuple[list[NDArray[np.float32]], int]:
        began_ns = now_ns()
        return self._encoder.encode(picture), now_ns() - began_ns

    def close(self) -> None:
        """Waits for the picture that is being encoded."""
        self._thread.shutdown(cancel_futures=True)
        self._encoder.close()
