from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from training.batches import EMPTY, LEARNT, PROMPT, PROSE, Batch, Feed, Recipe, packed
from training.bundle import bundled_vocabulary
from training.sample import sample
from training.tests.scales import Scales
from training.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return bundled_vocabulary()


def test_a_batch_has_its_tokens_in_rows_with_one_more_to_predict(vocabulary: Vocabulary) -> None:
    batch = packed(Scales()("a", "train"), vocabulary.tokenizer(), tokens=256, length=64)
    assert batch.ids.shape == batch.marks.shape == (4, 65)
    assert (batch.marks[:, -5:] == EMPTY).all() and (batch.marks[:, :-5] != EMPTY).all()


def test_lengths_are_drawn_by_their_weights_and_tokens_stay_the_same(vocabulary: Vocabulary) -> None:
    recipe = Recipe(Scales(), vocabulary, tokens=256, lengths={32: 0.25, 128: 0.75})
    shapes = Counter(batch.ids.shape for batch in islice(recipe.batches("a"), 200))
    assert shapes.keys() == {(8, 33), (2, 129)}
    assert 110 < shapes[2, 129] < 190


def test_the_same_seed_gives_the_same_batches(vocabulary: Vocabulary) -> None:
    recipe = Recipe(Scales(), vocabulary, tokens=256, lengths={32: 1.0, 64: 1.0})
    one, again, other = (next(recipe.batches(seed)).ids for seed in ("a", "a", "b"))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_a_feed_takes_from_all_its_processes(vocabulary: Vocabulary) -> None:
    recipe = Recipe(Scales(), vocabulary, tokens=64, lengths={64: 1.0})
    firsts = {seed: next(recipe.batches(seed)).ids.tobytes() for seed in ("a", "b")}
    with Feed(recipe, ["a", "b"]) as feed:
        missing = set(firsts.values())
        while missing:
            missing.discard(feed.take().ids.tobytes())


def test_a_generator_that_fails_ends_the_training_rather_than_stall_it(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.batches.PATIENCE_S", 0.2)
    recipe = Recipe(Scales(breaks=True), vocabulary, tokens=64, lengths={64: 1.0})
    with Feed(recipe, ["a"]) as feed, pytest.raises(ChildProcessError, match="batches a"):
        feed.take()


def batch_of(*marks: int) -> Batch:
    return Batch(np.arange(len(marks), dtype=np.int32)[None], np.array([marks], np.int8))


def chosen(batch: Batch, count: int) -> dict[int, float]:
    """Weight by target, of those that have any."""
    found = sample(batch, count, np.random.default_rng(1))
    assert len(found.places) == len(found.targets) == len(found.weights) == count
    assert (found.targets == batch.ids[0, 1:][found.places]).all()
    return {int(t): round(float(w), 3) for t, w in zip(found.targets, found.weights, strict=True) if w}


def test_learnt_tokens_come_first_in_a_sample() -> None:
    batch = batch_of(PROMPT, PROMPT, LEARNT, PROMPT, LEARNT, PROSE, EMPTY, EMPTY)
    assert chosen(batch, 2) == {2: 1.0, 4: 1.0}
    assert chosen(batch, 5) == {1: 0.1, 2: 1.0, 3: 0.1, 4: 1.0, 5: 0.3}


def test_a_sample_of_too_little_is_filled_up_with_what_counts_for_nothing() -> None:
    assert chosen(batch_of(PROMPT, LEARNT, EMPTY), 6) == {1: 1.0}
    assert chosen(batch_of(EMPTY, EMPTY, EMPTY), 2) == {}
