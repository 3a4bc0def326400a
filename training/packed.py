"""Rows of tokens in a file: what training reads, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
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

    def seen(self) -> tuple[Array, Array, Array]:
        """Of each token, the places in its row where its own piece begins, and where the stem before it begins and
        ends: rows x length, int16 each. A token of a stem has no stem before it: both are where it begins."""
        ends = np.cumsum(self.pieces, dtype=np.int64)
        starts = ends - self.pieces
        own = np.maximum.accumulate(np.where(self.stems, np.arange(len(ends)), 0))
        places = starts, starts[own], np.where(self.stems, starts, ends[own])
        length = self.ids.shape[1]
        row = starts // length * length
        first, root, end = (
            np.repeat((place - row).astype(np.int16), self.pieces).reshape(self.ids.shape) for place in places
        )
        return first, root, end

    def write(self, path: Path) -> None:
        """As a `.npz` file with a compression that finds the schemas that rows far apart share."""
        flags = {name: np.packbits(getattr(self, name)) for name in ("learnt", "stems")}
        with ZipFile(path, "w", ZIP_LZMA) as file:
            for name, array in {"ids": self.ids, "pieces": self.pieces, **flags}.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array)


def read(path: Path) -> Packed:
    arrays: Mapping[str, Array] = np.load(path)
    ids, pieces = arrays["ids"], arrays["pieces"]
    learnt = np.unpackbits(arrays["learnt"], count=ids.size).astype(bool).reshape(ids.shape)
    return Packed(ids, learnt, pieces, np.unpackbits(arrays["stems"], count=len(pieces)).astype(bool))


def joined(parts: list[Packed]) -> Packed:
    ids, learnt, pieces, stems = zip(*((part.ids, part.learnt, part.pieces, part.stems) for part in parts), strict=True)
    return Packed(*(np.concatenate(arrays) for arrays in (ids, learnt, pieces, stems)))
