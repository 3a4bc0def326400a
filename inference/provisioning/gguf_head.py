"""The head of a GGUF file: what it states of the model, and where its tensors are. Values stay bytes: the library
`gguf` unpacks each token of a vocabulary, which takes seconds.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import Struct, calcsize, error, pack, unpack_from

_HEADER = Struct("<4sIQQ")  # magic, version, tensors, values
_MAGIC, _VERSION, _ALIGNMENT = b"GGUF", 3, 32
_READ = (2, _VERSION)  # laid out alike; a file of a machine with the other byte order states neither
_LENGTH, _KIND = Struct("<Q"), Struct("<I")
_SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # by kind
_UNSIGNED, _FLOAT, _STRING, _ARRAY = 4, 6, 8, 9


@dataclass(frozen=True, slots=True)
class Tensor:
    """`shape` has the length of a row first; `kind` is one of ggml's; `offset` counts from the end of the head."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def weights(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Head:
    values: Mapping[str, bytes]  # by key: the kind, and what is stated
    tensors: Sequence[Tensor]

    @classmethod
    def read(cls, file: memoryview) -> tuple[Head, int]:
        """And where the tensors begin. Raises ValueError for what is no such file, or not all of its head."""
        try:
            head, end = cls._read(file)
            return head, head.aligned(end)
        except (error, KeyError, OverflowError, RecursionError, ZeroDivisionError) as failure:
            raise ValueError(f"the head of the file is damaged: {failure}") from failure

    @classmethod
    def _read(cls, file: memoryview) -> tuple[Head, int]:
        magic, version, tensors, _ = _HEADER.unpack_from(file)
        if magic != _MAGIC or version not in _READ:
            raise ValueError(f"it is not a GGUF file of version {' or '.join(map(str, _READ))}")
        values, place = dict[str, bytes](), _HEADER.size
        for name, start, place in _values(file):
            values[name] = file[start:place].tobytes()
        listed = []
        for _ in range(tensors):
            tensor, place = _tensor(file, place)
            listed.append(tensor)
        return cls(values, listed), place

    @property
    def alignment(self) -> int:
        stated = self.values.get("general.alignment")
        return _ALIGNMENT if stated is None else int(_KIND.unpack_from(stated, _KIND.size)[0])

    def aligned(self, place: int) -> int:
        """The next place where a tensor may begin."""
        return -(-place // self.alignment) * self.alignment

    def packed(self) -> bytes:
        """Up to the first tensor."""
        parts = [_HEADER.pack(_MAGIC, _VERSION, len(self.tensors), len(self.values))]
        parts += [_text(name) + value for name, value in self.values.items()]
        for tensor in self.tensors:
            count = len(tensor.shape)
            parts += [_text(tensor.name), pack(f"<I{count}QIQ", count, *tensor.shape, tensor.kind, tensor.offset)]
        whole = b"".join(parts)
        return whole.ljust(self.aligned(len(whole)), b"\0")


def stated(value: str | int | float) -> bytes:
    """As in `Head.values`."""
    match value:
        case str():
            return _KIND.pack(_STRING) + _text(value)
        case int():
            return pack("<II", _UNSIGNED, value)
        case float():
            return pack("<If", _FLOAT, value)


def number(value: bytes) -> float:
    """What is stated as one number."""
    (kind,) = _KIND.unpack_from(value)
    return float(unpack_from(f"<{_SIZES[kind]}", value, _KIND.size)[0])


def numbers(path: Path, key: str) -> Sequence[int]:
    """The array of numbers under a key, empty without one: llama.cpp tells only scalar values. For a file that it has
    opened; arrays that concern layers stand before the vocabulary, so little is read. Raises OSError, struct.error."""
    file = read_only(path)
    for name, start, _ in _values(file):
        (kind,) = _KIND.unpack_from(file, start)
        if name == key and kind == _ARRAY:
            kind, count = unpack_from("<IQ", file, start + _KIND.size)
            return unpack_from(f"<{count}{_SIZES[kind]}", file, start + _KIND.size + calcsize("<IQ"))
    return ()


def read_only(path: Path) -> memoryview:
    """Pages are read when they are used. Raises OSError, ValueError."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _values(file: memoryview) -> Iterator[tuple[str, int, int]]:
    """The keys, each with where its kind stands and where its value ends."""
    *_, values = _HEADER.unpack_from(file)
    place = _HEADER.size
    for _ in range(values):
        name, place = _string(file, place)
        (kind,) = _KIND.unpack_from(file, place)
        end = _end(file, place + _KIND.size, kind)
        yield name, place, end
        place = end


def _end(file: memoryview, place: int, kind: int, count: int = 1) -> int:
    """Where so many values of a kind end."""
    if kind == _ARRAY:
        kind, count = unpack_from("<IQ", file, place)
        return _end(file, place + calcsize("<IQ"), kind, count)
    if kind != _STRING:
        return place + count * calcsize(_SIZES[kind])
    for _ in range(count):
        place += _LENGTH.size + _LENGTH.unpack_from(file, place)[0]
    return place


def _tensor(file: memoryview, place: int) -> tuple[Tensor, int]:
    name, place = _string(file, place)
    (count,) = _KIND.unpack_from(file, place)
    layout = f"<{count}QIQ"
    *shape, kind, offset = unpack_from(layout, file, place + _KIND.size)
    return Tensor(name, tuple(shape), kind, offset), place + _KIND.size + calcsize(layout)


def _string(file: memoryview, place: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(file, place)
    end = place + _LENGTH.size + length
    return file[place + _LENGTH.size : end].tobytes().decode("utf-8", "replace"), end


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded
