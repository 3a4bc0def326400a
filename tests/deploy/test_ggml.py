"""The headers that builds of llama.cpp include, compiled against plain versions of what they use of it."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from deploy.wheel import including_headers

PLAIN = Path(__file__).with_name("ggml")
AVX2 = ("-mavx2", "-mfma", "-mf16c") if platform.machine() == "x86_64" else ()
Compile = Callable[..., ctypes.CDLL]
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Programs with the header of the same name, each compiled once: that takes two seconds."""
    folder = tmp_path_factory.mktemp("libraries")

    @cache
    def compile_(what: str, *features: str) -> Path:
        library = folder / f"{what}{''.join(features)}.so"
        command = ["c++", "-shared", "-fPIC", "-O2", "-std=c++17", "-Dggml_cpu_EXPORTS", "-I", str(PLAIN), *features]
        files = ["-include", f"ggml_{what}.h", str(PLAIN / f"{what}.cpp"), "-o", str(library)]
        subprocess.run([*command, *files], check=True, env=including_headers())
        return library

    return compile_


@pytest.fixture
def compiled(tmp_path: Path, libraries: Callable[..., Path]) -> Compile:
    """Loads one that nobody has called yet: it counts, and has a switch."""
    return lambda *of: ctypes.CDLL(str(shutil.copy(libraries(*of), tmp_path)))


@pytest.mark.parametrize("features", [(), ("-march=native",)])
def test_our_loops_give_the_numbers_of_those_they_replace(features: tuple[str, ...], compiled: Compile) -> None:
    values = np.concatenate([np.linspace(-20, 20, 997), [-1e30, 1e30, 0.0]]).astype(np.float32)
    loops = compiled("loops", *features)
    loops.maximum.restype = ctypes.c_float
    gelu = np.full_like(values, np.nan)
    for n in (*range(1, 80), len(values)):
        row = values[-n:].copy()
        assert loops.maximum(n, row.ctypes) == row.max()
        assert loops.maximum(n, (row - np.inf).ctypes) == -np.inf
        loops.gelu(n, gelu.ctypes, row.ctypes)
        assert np.abs(gelu[:n] - _gelu(row)).max() < 1e-6
    assert loops.replaced()


def _gelu(x: Floats) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    return np.asarray(wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))))


ROWS_MAX = 100


class Product:
    """`rows` x `columns` of numbers in Q8_0, multiplied by the threads one after the other."""

    def __init__(self, products: ctypes.CDLL, *, rows: int, columns: int, blocks: int = 3, threads: int = 1) -> None:
        random = np.random.default_rng(7)
        kind = np.dtype([("d", np.float16), ("q", np.int8, 32)])
        weights, activations = np.zeros((columns, blocks), kind), np.zeros((ROWS_MAX, blocks), kind)
        for each in (weights, activations):
            each["d"] = random.uniform(0.001, 1, each.shape)
            each["q"] = random.integers(-127, 128, (*each.shape, 32))
        weights["q"][0, 0] = activations["q"][0, 0] = -127  # the largest sum
        activations = activations[:rows]
        self.result = np.full((rows, columns), np.nan, np.float32)
        for thread in range(threads):
            products.multiply(
                *map(ctypes.c_int64, (columns, rows, blocks)),
                *(each.ctypes for each in (weights, activations, self.result)),
                *(thread, threads),
            )
        self._weights, self._activations = weights, activations
        w, x = (
            (each["d"].astype(np.float64)[..., None] * each["q"]).reshape(len(each), -1)
            for each in (weights, activations)
        )
        self.exact = x @ w.T
        self.scale = np.abs(x) @ np.abs(w).T

    @property
    def is_right(self) -> bool:
        return bool((np.abs(self.result - self.exact) <= 1e-6 * self.scale).all())

    @property
    def as_llama_cpp_rounds(self) -> Floats:
        """Four numbers of a block are summed exactly in each of eight lanes, which are added to those of earlier blocks
        by fused operations; then halves of the lanes are added."""
        lanes = np.zeros((*self.result.shape, 8), np.float32)
        for block in range(self._weights.shape[1]):
            w, x = self._weights[:, block], self._activations[:, block]
            scales = x["d"].astype(np.float32)[:, None] * w["d"].astype(np.float32)
            products = x["q"].astype(np.longdouble)[:, None] * w["q"]
            fours = products.reshape(*scales.shape, 8, 4).sum(axis=-1)
            lanes = (scales[..., None] * fours + lanes).astype(np.float32)
        fours = lanes[..., :4] + lanes[..., 4:]
        twos = fours[..., :2] + fours[..., 2:]
        return np.asarray(twos[..., 0] + twos[..., 1])


def test_products_of_an_encoder_are_right_for_any_number_of_rows(compiled: Compile) -> None:
    products = compiled("products", *AVX2)
    if not AVX2:
        assert not hasattr(products, "firsttoken_encoding")
        return
    products.firsttoken_encoding(True)
    for rows in range(32, 45):
        assert Product(products, rows=rows, columns=48).is_right, rows
    assert Product(products, rows=100, columns=80, blocks=12, threads=3).is_right
    assert products.usual() == 0


def test_a_row_has_the_same_product_to_the_bit_beside_any_others(compiled: Compile) -> None:
    if AVX2:
        products = compiled("products", *AVX2)
        products.firsttoken_encoding(True)
        few, many = (Product(products, rows=rows, columns=16, threads=threads) for rows, threads in ((32, 1), (71, 2)))
        assert (few.result[:1] == many.result[:1]).all()


def test_products_of_language_models_are_rounded_as_llama_cpp_rounds_them(compiled: Compile) -> None:
    products = compiled("products", *AVX2)
    for rows, columns, threads in ((1, 8, 1), (2, 4, 1), (3, 8, 1), (8, 12, 2), (31, 40, 3), (100, 48, 2)):
        product = Product(products, rows=rows, columns=columns, blocks=12, threads=threads)
        assert not AVX2 or (product.result == product.as_llama_cpp_rounds).all(), rows
    assert not AVX2 or products.usual() == 0


def test_products_of_odd_columns_are_left_to_llama_cpp(compiled: Compile) -> None:
    products = compiled("products", *AVX2)
    Product(products, rows=1, columns=42)
    Product(products, rows=100, columns=42)
    assert products.usual() == 2


HEADS, SIZE = 3, 32


class Attention:
    """Rows with a mask, computed in parts of so many rows of all heads."""

    def __init__(self, attention: ctypes.CDLL, mask: NDArray[np.float16], part: int | None = None) -> None:
        random = np.random.default_rng(7)
        rows = len(mask)
        q = random.normal(0, 2, (rows, HEADS, SIZE)).astype(np.float32)
        k, v = (random.normal(0, 2, (rows, HEADS, SIZE)).astype(np.float16) for _ in range(2))
        self.result = np.full((rows, HEADS, SIZE), np.nan, np.float32)
        for begin in range(0, rows * HEADS, part or rows * HEADS):
            attention.attend(
                *map(ctypes.c_int64, (rows, HEADS, SIZE)),
                *(each.ctypes for each in (q, k, v, mask)),
                ctypes.c_float(0.2),
                self.result.ctypes,
                *map(ctypes.c_int64, (begin, min(begin + (part or rows * HEADS), rows * HEADS))),
            )
        self._scores = np.einsum("qhd,khd->hqk", q, k.astype(np.float64)) * 0.2 + mask
        self._values = v.astype(np.float64)

    @property
    def is_right(self) -> bool:
        weights = np.exp(self._scores - self._scores.max(axis=-1, keepdims=True))
        exact = np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), self._values)
        return bool((np.abs(self.result - exact) < 1e-5).all())


def mask_of(lengths: list[int]) -> NDArray[np.float16]:
    """Of texts side by side."""
    texts = np.repeat(np.arange(len(lengths)), lengths)
    return np.where(texts[:, None] == texts, 0, -np.inf).astype(np.float16)


def test_texts_side_by_side_attend_to_themselves_alone(compiled: Compile) -> None:
    if not AVX2:
        return
    attention = compiled("attention", *AVX2)
    for lengths in ([64], [1, 63], [30, 1, 40], [24, 24, 24], [100, 12, 37, 107]):
        assert Attention(attention, mask_of(lengths)).is_right, lengths
        assert Attention(attention, mask_of(lengths), part=50).is_right, lengths
    assert attention.usual() == 0


def test_attention_with_any_other_mask_is_left_to_llama_cpp(compiled: Compile) -> None:
    if not AVX2:
        return
    attention = compiled("attention", *AVX2)
    causal = np.triu(np.full((70, 70), -np.inf), 1).astype(np.float16)
    biased, beyond, scattered = (mask_of([30, 40]) for _ in range(3))
    biased[35, 40], beyond[5, 50], scattered[0, 40] = -0.5, 0, 0
    for number, mask in enumerate((causal, biased, beyond, scattered, np.full_like(causal, -np.inf)), 1):
        Attention(attention, mask)
        assert attention.usual() == number


class Cells:
    """Keys or values of `groups` of heads in several streams, multiplied with rows of each head by the threads, one
    after the other. A cell lies `beside` those of other groups, as of keys, or of its own."""

    def __init__(
        self,
        decode: ctypes.CDLL,
        *,
        groups: int,
        heads: int,
        size: int = 64,
        cells: int = 12,
        streams: int = 3,
        rows: int = 1,
        beside: bool = True,
        threads: int = 1,
    ) -> None:
        random = np.random.default_rng(7)
        self._cells = random.normal(0, 1, (streams, groups, cells, size)).astype(np.float16)
        self._rows = random.normal(0, 1, (streams, heads, rows, size)).astype(np.float32)
        self.result = np.full((streams, heads, rows, cells), np.nan, np.float32)
        laid = np.ascontiguousarray(self._cells.swapaxes(1, 2)) if beside else self._cells
        for thread in range(threads):
            decode.multiply(
                *map(ctypes.c_int64, (size, cells, groups, heads, rows, streams)),
                *(beside, laid.ctypes, self._rows.ctypes, self.result.ctypes, thread, threads),
            )

    @property
    def as_llama_cpp_rounds(self) -> Floats:
        """Products are summed in 32 lanes by fused operations; these in two steps by registers of eight, whose halves
        are added, then neighbours."""
        shared = self._rows.shape[1] // self._cells.shape[1]
        x = np.repeat(self._cells, shared, axis=1)[:, :, None].astype(np.float64)
        y = self._rows.astype(np.float16)[:, :, :, None].astype(np.float64)
        lanes = np.zeros((*self.result.shape, 32), np.float32)
        for at in range(0, x.shape[-1], 32):
            lanes = (x[..., at : at + 32] * y[..., at : at + 32] + lanes).astype(np.float32)
        registers = lanes.reshape(*self.result.shape, 4, 8)
        eights = (registers[..., 0, :] + registers[..., 2, :]) + (registers[..., 1, :] + registers[..., 3, :])
        fours = eights[..., :4] + eights[..., 4:]
        twos = fours[..., ::2] + fours[..., 1::2]
        return np.asarray(twos[..., 0] + twos[..., 1])


def test_rows_of_a_step_are_multiplied_as_llama_cpp_rounds_them(compiled: Compile) -> None:
    if not AVX2:
        return
    decode = compiled("decode", *AVX2)
    shared = [(1, 1), (3, 9), (2, 4), (2, 8), (1, 5), (1, 7), (4, 4)]
    for (groups, heads), beside, threads in product(shared, (True, False), (1, 2, 5)):
        cells = Cells(decode, groups=groups, heads=heads, beside=beside, threads=threads)
        assert (cells.result == cells.as_llama_cpp_rounds).all(), (groups, heads, beside, threads)
    for size, count, streams in ((32, 4, 1), (128, 64, 2), (1024, 64, 1)):
        cells = Cells(decode, groups=2, heads=6, size=size, cells=count, streams=streams, threads=3)
        assert (cells.result == cells.as_llama_cpp_rounds).all(), (size, count, streams)
    assert decode.usual() == 0


def test_products_of_several_rows_and_of_odd_sizes_are_left_to_llama_cpp(compiled: Compile) -> None:
    decode = compiled("decode", *AVX2)
    Cells(decode, groups=1, heads=2, rows=2)
    Cells(decode, groups=1, heads=2, size=80)
    Cells(decode, groups=1, heads=2, cells=10)
    assert decode.usual() == 3


class SoftMax:
    """Of `heads` in several streams, with a mask for each stream; computed by some of the threads."""

    def __init__(
        self, decode: ctypes.CDLL, *, rows: int, heads: int, streams: int, threads: int, run: list[int]
    ) -> None:
        random = np.random.default_rng(7)
        scores = random.normal(0, 2, (streams, heads, rows, 40)).astype(np.float32)
        mask = np.where(random.random((streams, 1, rows, 40)) < 0.5, 0, -np.inf).astype(np.float32)
        result = np.full_like(scores, np.nan)
        for thread in run:
            decode.soft_max(
                *map(ctypes.c_int64, (40, rows, heads, streams)),
                *(scores.ctypes, mask.ctypes, result.ctypes, thread, threads),
            )
        weights = np.exp(scores.astype(np.float64) + mask)
        near = np.abs(result - weights / weights.sum(axis=-1, keepdims=True)) < 1e-6
        self.right = int(near.all(axis=-1).sum())  # rows


@pytest.mark.parametrize("features", [(), ("-march=native",)])
def test_threads_share_the_softmax_of_a_step(features: tuple[str, ...], compiled: Compile) -> None:
    decode = compiled("decode", *features)
    for heads, streams, threads in ((9, 1, 2), (3, 5, 2), (3, 5, 4), (2, 1, 3)):
        of = [SoftMax(decode, rows=1, heads=heads, streams=streams, threads=threads, run=[i]) for i in range(threads)]
        assert sum(each.right for each in of) == heads * streams
        assert max(each.right for each in of) <= -(-heads * streams // threads)
    for rows in (1, 2, 7):
        whole = SoftMax(decode, rows=rows, heads=3, streams=4, threads=3, run=[0, 1, 2])
        assert whole.right == rows * 3 * 4
