from __future__ import annotations

import torch
from torch.nn import Parameter

from training.muon import Muon, orthogonal
from training.team import Team


def test_updates_have_singular_values_near_one() -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 32, 96)).float())
    assert values.min() > 0.5 and values.max() < 1.4


def test_matrices_go_down_their_gradients_whichever_way_they_lie() -> None:
    torch.manual_seed(1)
    wanted = torch.randn(24, 8), torch.randn(8, 24)
    matrices = [Parameter(torch.zeros(24, 8)), Parameter(torch.zeros(8, 24))]
    muon = Muon(matrices, Team())
    assert {shape: tuple(m.shape) for shape, m in muon.momenta.items()} == {(8, 24): (2, 8, 24)}
    distances = []
    for _ in range(60):
        loss = sum(((m - w) ** 2).sum() for m, w in zip(matrices, wanted, strict=True))
        assert isinstance(loss, torch.Tensor)
        distances.append(loss.item())
        for matrix in matrices:
            matrix.grad = None
        torch.autograd.backward(loss)
        muon.step(0.1)
    assert distances[-1] < 0.1 * distances[0]


def test_a_team_shares_the_matrices_out_without_rest() -> None:
    for total in (0, 1, 5, 12):
        shares = [Team(rank, 3).share(total) for rank in range(3)]
        assert [i for share in shares for i in range(total)[share]] == list(range(total))
