from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from training.model import Model, fresh
from training.shape import CHAT, DRAFT, Shape

TINY = replace(DRAFT, n_layer=2, ctx=256)


@pytest.fixture(scope="module")
def model() -> Model:
    return fresh(TINY, seed=1)


def random_ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(9, TINY.vocab, (rows, length), generator=torch.Generator().manual_seed(2))


def test_a_token_does_not_know_what_comes_after_it(model: Model) -> None:
    ids = random_ids(2, 40)
    changed = ids.clone()
    changed[:, 30:] = random_ids(2, 10) + 1
    with torch.no_grad():
        before, after = model(ids), model(changed)
    assert torch.equal(before[:, :30], after[:, :30])
    assert not torch.equal(before[:, 30:], after[:, 30:])


def test_chosen_places_have_the_states_that_they_have_among_all(model: Model) -> None:
    ids, chosen = random_ids(3, 20), torch.tensor([59, 0, 7, 7])
    with torch.no_grad():
        assert torch.allclose(model.hidden(ids, chosen), model.hidden(ids)[chosen], atol=1e-5)


@pytest.mark.parametrize("shape", [CHAT, DRAFT])
def test_a_fresh_model_copies_what_it_has_seen_and_guesses_nothing_else(shape: Shape) -> None:
    """Random tokens twice over: by chance one in five thousand would be right."""
    repeated = random_ids(4, 40).repeat(1, 2)
    with torch.no_grad():
        guessed = fresh(shape, seed=1)(repeated)[:, :-1].argmax(-1) == repeated[:, 1:]
    assert guessed[:, :39].float().mean() < 0.1
    assert guessed[:, 44:].float().mean() > 0.8


def test_a_shape_without_room_for_copying_is_refused() -> None:
    with pytest.raises(ValueError, match="two key heads"):
        fresh(replace(TINY, n_kv=1), seed=1)
