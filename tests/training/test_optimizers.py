"""Muon: orthogonal steps, alone and in the training loop."""

import pytest
import torch
from torch import nn

from linearizer.training.loop import Training
from linearizer.training.optimizers import Muon, Optimizers, orthogonalize


@pytest.mark.parametrize("shape", [(5, 5), (3, 40), (40, 3)])
def test_orthogonalized_keeps_directions_and_evens_out_their_strength(shape):
    U, _, Vh = torch.linalg.svd(torch.randn(shape).double(), full_matrices=False)
    S = torch.logspace(0, -1.5, min(shape)).double()
    found = orthogonalize(U @ (S[:, None] * Vh))
    inside = U.mT @ found @ Vh.mT
    off = inside - inside.diagonal().diag()
    assert off.abs().max() < 1e-10
    assert bool((inside.diagonal() > 0.5).all() and (inside.diagonal() < 1.5).all())


def test_orthogonalized_of_nothing_is_nothing():
    assert torch.equal(orthogonalize(torch.zeros(4, 2)), torch.zeros(4, 2))


def test_a_step_has_the_size_of_adam_and_ignores_that_of_the_gradient():
    changes = []
    for scale in (1.0, 1e-4):
        torch.manual_seed(0)
        kernel = nn.Parameter(torch.zeros(16, 8, 3, 3))
        optimizer = Muon([kernel], rate=0.1)
        kernel.grad = scale * torch.randn_like(kernel)
        optimizer.step()
        changes.append(kernel.detach().clone())
    assert torch.allclose(*changes, rtol=1e-3, atol=1e-6)
    assert 0.01 < changes[0].square().mean().sqrt() < 0.03  # 0.2 · rate · about 1


def test_weight_decay_shrinks_where_there_is_no_gradient():
    weight = nn.Parameter(torch.ones(3, 3))
    optimizer = Muon([weight], rate=0.1, weight_decay=0.5)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert torch.allclose(weight, torch.full((3, 3), 0.95))


def test_muon_takes_matrices_and_adam_the_rest():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Linear(4, 1), nn.Linear(4, 3))
    both = Optimizers("muon", dict(net.named_parameters()), 1e-3, 0.99, 0.0, True)
    kinds = {n: type(both._of[p]).__name__ for n, p in net.named_parameters()}
    assert kinds == {
        "0.weight": "Muon", "0.bias": "AdamW", "1.weight": "AdamW", "1.bias": "AdamW",
        "2.weight": "Muon", "2.bias": "AdamW",
    }  # fmt: skip
    alone = Optimizers("adam", dict(net.named_parameters()), 1e-3, 0.99, 0.0, True)
    assert {type(one).__name__ for one in alone.each} == {"AdamW"}


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="expected matrices or kernels, got shape"):
        Muon([nn.Parameter(torch.zeros(3))], rate=0.1)
    with pytest.raises(ValueError, match="muon needs whole matrices"):
        Training(optimizer="muon", strategy="fsdp")
