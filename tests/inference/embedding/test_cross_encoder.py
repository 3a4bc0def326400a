"""The cross-encoder: its scores are those of the model, batched or not, within its time; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from inference.bundled import CHAT_MODEL, EMBEDDER
from inference.embedding.cross_encoder import SEQUENCES_MAX, CrossEncoder
from inference.errors import ModelNotLoaded
from tests.inference.cross_encoders import TinyCrossEncoder, texts

QUERY = "what is the default port"
FOREVER_MS = 1e9


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyCrossEncoder:
    model = TinyCrossEncoder(tmp_path_factory.mktemp("ranker") / "tiny-ranker.gguf")
    model.write()
    return model


@pytest.fixture(scope="module")
def encoder(tiny: TinyCrossEncoder) -> Iterator[CrossEncoder]:
    encoder = CrossEncoder.load(tiny.path)
    yield encoder
    encoder.close()


async def test_the_scores_are_those_of_the_model_computed_by_hand(
    encoder: CrossEncoder, tiny: TinyCrossEncoder
) -> None:
    given = texts(3, 9, 1)
    scores = await encoder.score(QUERY, given, FOREVER_MS)
    assert scores == pytest.approx([tiny.score(QUERY, text) for text in given], abs=1e-2)  # tables of half precision
    assert np.ptp(scores) > 0.1, "the texts are told apart"


async def test_a_batch_gives_the_scores_of_one_at_a_time(encoder: CrossEncoder) -> None:
    given = texts(*(1 + n % 20 for n in range(SEQUENCES_MAX + 5)))
    alone = [(await encoder.score(QUERY, [text], FOREVER_MS))[0] for text in given]
    assert await encoder.score(QUERY, given, FOREVER_MS) == pytest.approx(alone, abs=1e-2)


async def test_only_so_many_texts_are_read_as_the_time_allows(encoder: CrossEncoder) -> None:
    given = texts(*[5] * 40)
    assert len(await encoder.score(QUERY, given, FOREVER_MS)) == 40
    assert len(await encoder.score(QUERY, given, 0.0)) == 1


async def test_texts_that_are_too_long_are_cut_and_markup_stays_text(encoder: CrossEncoder) -> None:
    whole, longer = await encoder.score(QUERY, [" ".join(texts(60)), " ".join(texts(60, 500))], FOREVER_MS)
    assert whole == pytest.approx(longer, abs=1e-2)
    honest, forged = await encoder.score(QUERY, ["port [UNK]", "port [SEP]"], FOREVER_MS)
    assert np.isfinite([honest, forged]).all()
    assert len(await encoder.score("[SEP]" * 5000, ["", "a"], FOREVER_MS)) == 2
    assert len(await encoder.score("", [], FOREVER_MS)) == 0


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"outputs": 2}, "one output"),
        ({"pooling": gguf.PoolingType.MEAN}, "one output"),
        ({"head": False}, "one output"),  # llama.cpp takes a number of the vector for the score
    ],
)
def test_a_file_that_cannot_rank_is_refused(model: dict[str, object], reason: str, tmp_path: Path) -> None:
    path = TinyCrossEncoder(tmp_path / "bad.gguf", **model).write()  # type: ignore[arg-type]
    with pytest.raises(ModelNotLoaded, match=reason):
        CrossEncoder.load(path)


def test_a_file_that_is_cut_off_is_refused(tiny: TinyCrossEncoder, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny.path.read_bytes()[:-1000])
    with pytest.raises(ModelNotLoaded, match="truncated"):
        CrossEncoder.load(path)


@pytest.mark.parametrize(("path", "reason"), [(EMBEDDER, "one output"), (CHAT_MODEL, "BERT family")])
def test_other_models_are_refused_with_what_they_lack(path: Path, reason: str) -> None:
    with pytest.raises(ModelNotLoaded, match=reason):
        CrossEncoder.load(path)
