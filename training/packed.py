"""Rows of tokens in a file: what training reads, wherever it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZIP_LZMA, ZipFile

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Packed:
    """Trees end to end, in rows that each hold whole pieces: a stem (the tools), its branches, or an empty rest.

    A token sees its own piece up to itself, and the stem of its tree.
    """

    ids: Array  # rows x length, uint16
    learnt: Array  # rows x length, bool: what the assistant writes
    pieces: Array  # their lengths, uint16, of all rows one after the other
    stems: Array  # bool: which pieces begin a tree

    def table(self) -> Array:
        """rows x 5 x length, int32: of each token its id, whether it is learnt, and the places in its row where its
        piece begins, where the stem before it begins, and where that ends. Before a stem stands an empty one."""
        ends = np.cumsum(self.pieces, dtype=np.int64)
        starts = ends - self.pieces
        own = np.maximum.accumulate(np.where(self.stems, np.arange(len(ends)), 0))
        row = starts // self.ids.shape[1] * self.ids.shape[1]
        places = (starts, starts[own], np.where(self.stems, starts, ends[own]))
        seen = (np.repeat((place - row).astype(np.int32), self.pieces).reshape(self.ids.shape) for place in places)
        return np.stack([self.ids.astype(np.int32), self.learnt.astype(np.int32), *seen], 1)

    def write(self, path: Path) -> None:
        """As a `.npz` file with a compression that finds the schemas that rows far apart share."""
        flags = {name: np.packbits(getattr(self, name)) for name in ("learnt", "stems")}
        with ZipFile(path, "w", ZIP_LZMA) as file:
            for name, array in {"ids": self.ids, "pieces": self.pieces, **flags}.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array)


def read(path: Path) -> Packed:
    arrays = np.load(path)
    ids, pieces = arrays["ids"], arrays["pieces"]
    learnt = np.unpackbits(arrays["learnt"], count=ids.size).astype(bool).reshape(ids.shape)
    return Packed(ids, learnt, pieces, np.unpackbits(arrays["stems"], count=len(pieces)).astype(bool))
