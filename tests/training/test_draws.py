"""Randomness as a function of (seed, step, place)."""

import pytest
import torch

from linearizer.training.draws import Draw, Order, mix


@pytest.mark.parametrize("parts", [(100,), (50, 50), (32, 32, 36), (1, 99), (33, 34, 33)])
def test_noise_does_not_depend_on_the_split(parts):
    whole = Draw(3)
    one, two = whole.normal(torch.empty(100, 2, 3)), whole.uniform(torch.empty(100, 5))
    draws, start = [], 0
    for n in parts:
        draw = Draw(3, start)
        draws.append((draw.normal(torch.empty(n, 2, 3)), draw.uniform(torch.empty(n, 5))))
        start += n
    assert torch.equal(torch.cat([a for a, _ in draws]), one)
    assert torch.equal(torch.cat([b for _, b in draws]), two)


def test_noise_is_normal_and_uniform_and_new_at_each_call():
    draw = Draw(0)
    x, u = draw.normal(torch.empty(5000, 20)), draw.uniform(torch.empty(5000, 20))
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02 and abs(u.mean() - 0.5) < 0.01
    assert u.min() >= 0 and u.max() < 1
    assert (x.mT @ x / 5000 - torch.eye(20)).abs().max() < 0.1  # blocks are independent
    assert not torch.equal(draw.normal(torch.empty(8, 2)), draw.normal(torch.empty(8, 2)))
    assert len(draw.normal(torch.empty(0, 3))) == 0
    assert draw.normal(torch.empty(3, dtype=torch.float32)).dtype == torch.float32


def test_the_order_is_a_shuffle_of_each_epoch_and_random_access():
    order = Order(10, seed=1)
    stream = torch.cat([order.take(p, 7) for p in range(0, 70, 7)])
    for epoch in stream.split(10):
        assert sorted(epoch.tolist()) == list(range(10))
    assert not torch.equal(stream[:10], stream[10:20])
    late = Order(10, seed=1)
    assert torch.equal(late.take(35, 12), stream[35:47])  # no history needed
    assert torch.equal(late.take(0, 70), stream)  # longer than an epoch, and back in time
    assert not torch.equal(Order(10, seed=2).take(0, 10), stream[:10])
    with pytest.raises(ValueError, match="empty set"):
        Order(0, seed=0)


def test_seeds_differ_by_every_part():
    seeds = {mix(a, b, c) for a in range(5) for b in ("x", "y") for c in range(5)}
    assert len(seeds) == 50 and all(0 <= s < 2**63 for s in seeds)
    assert mix(1, 23) != mix(12, 3)
