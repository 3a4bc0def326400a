"""Pictures in a prompt: their pixels, and the tokens that stand for them.

A projector turns a picture into embeddings of the model's own dimensions, which are computed in place of tokens. For
everything that looks at tokens (the radix index, host memory, the disk), ids outside of the vocabulary stand for them,
drawn from a digest of the picture: prompts with the same picture share its keys and values, and no others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256, shake_256
from struct import unpack
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:  # the help of a command imports this too
    import numpy as np
    from numpy.typing import NDArray

IDS_END = 2**31  # llama.cpp's and the disk's tokens are signed 32-bit numbers
# A thinner picture is cut into hundreds of slices by some encoders, and comes to less than a pixel in others.
ASPECT_MAX = 50
# Rows with non-causal attention are computed in one step: Gemma's pictures have up to 280.
BIDIRECTIONAL_TOKENS_MAX = 512


@dataclass(frozen=True, slots=True)
class Pixels:
    """Rows of `width` pixels, three bytes each: red, green, blue."""

    width: int
    height: int
    rgb: bytes = field(repr=False)

    @property
    def is_thin(self) -> bool:
        return max(self.width, self.height) > ASPECT_MAX * min(self.width, self.height)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as its sender encoded it, and its pixels once they are decoded."""

    media_type: str
    data: bytes = field(repr=False, compare=False)
    digest: str  # of the data
    pixels: Pixels | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, media_type: str, data: bytes) -> Picture:
        return cls(media_type, data, sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class PictureTokens:
    """Consecutive tokens that stand for a part of a picture. Large pictures have several parts, with text between them.

    If `bidirectional`, their rows attend to each other (non-causal attention), so they are computed in one step.
    """

    picture: Picture
    part: int
    ids: tuple[int, ...]
    bidirectional: bool = False

    @classmethod
    def of(
        cls, picture: Picture, part: int, tokens: int, vocabulary: int, projector: bytes, *, bidirectional: bool
    ) -> PictureTokens:
        """`projector` identifies what computes the embeddings for which they stand, and `vocabulary` is the size of the
        model's."""
        key = b"%b %b %d %d" % (projector, picture.digest.encode(), part, tokens)
        drawn = unpack(f"<{tokens}I", shake_256(key).digest(4 * tokens))
        return cls(picture, part, tuple(vocabulary + each % (IDS_END - vocabulary) for each in drawn), bidirectional)


# The parts of a picture, and the tokens of the text around them.
Layout: TypeAlias = Sequence[PictureTokens | tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PictureRange:
    """A picture, or a part of one, from token `start` of a prompt on."""

    start: int
    tokens: PictureTokens

    @property
    def end(self) -> int:
        return self.start + len(self.tokens.ids)


@dataclass(frozen=True, slots=True)
class PictureEmbeddings:
    """Rows [tokens, dimensions] that are computed in place of tokens; `bidirectional` as in `PictureTokens`."""

    rows: NDArray[np.float32]
    bidirectional: bool = False


class VisionEncoder(Protocol):
    """What a model needs for images: `inference.llama.Projector` is the real one."""

    def layout(self, picture: Picture) -> Layout:
        """What stands for a picture in a prompt. Thread-safe, and takes no time: it depends on the size alone. Raises
        UnseenPicture."""

    def encode(self, picture: Picture) -> list[NDArray[np.float32]]:
        """The embeddings [tokens, dimensions] of each of its parts. Takes up to seconds; used by one thread. Raises
        InferenceError."""

    def close(self) -> None: ...
