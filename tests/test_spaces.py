import math
from itertools import pairwise

import pytest
import torch

from catalogue import shaken
from laws import close
from linearizer import Space
from linearizer.bijections import Flatten, Squeeze, glow, mlp


@pytest.fixture
def X():
    return Space(shaken(mlp(4, blocks=2, hidden=16)))


def points(n, X):
    return torch.randn(n, *X.shape)


def test_every_operation_is_euclidean_in_coordinates(X):
    u, v = points(5, X), points(5, X)
    a, b = X.g(u), X.g(v)
    close(X.g(X.add(u, v)), a + b)
    close(X.g(X.sub(u, v)), a - b)
    close(X.g(X.neg(u)), -a)
    close(X.g(X.scale(2.5, u)), 2.5 * a)
    close(X.g(X.scale(torch.arange(5.0), u)), torch.arange(5.0)[:, None] * a)
    assert X.g(X.zero()).abs().max() < 1e-12 and X.zero().shape == (1, 4)
    close(X.inner(u, v), (a * b).sum(1))
    close(X.norm(u), a.norm(dim=1))
    close(X.distance(u, v), (a - b).norm(dim=1))
    close(X.angle(u, v), torch.acos((a * b).sum(1) / a.norm(dim=1) / b.norm(dim=1)), 1e-7)
    close(X.g(X.mean(u)), a.mean(0, keepdim=True))
    close(X.gram(u, v), a @ b.mT)
    close(X.gram(u), a @ a.mT)
    close(X.g(X.combine([0.5, -1, 2, 0, 1], u)), torch.tensor([[0.5, -1, 2, 0, 1]]) @ a)
    close(X.g(X.combine(torch.eye(5)[:2], u)), a[:2])


def test_small_angles_are_accurate(X):
    z = torch.randn(1, 4)
    w = (
        z
        + 1e-9
        * torch.linalg.vector_norm(z)
        * torch.linalg.qr(torch.cat([z, torch.randn(1, 4)]).mT)[0][:, 1]
    )
    u, v = X.points(z), X.points(w)
    assert X.angle(u, v).item() == pytest.approx(1e-9, rel=1e-3)


def test_geodesic_starts_at_u_ends_at_v_and_has_constant_speed(X):
    u, v = points(3, X), points(3, X)
    line = X.geodesic(u, v, torch.linspace(0, 1, 5))
    assert line.shape == (5, 3, 4)
    close(line[0], u, 1e-8)
    close(line[-1], v, 1e-8)
    steps = torch.stack([X.distance(a, b) for a, b in pairwise(line)])
    close(steps, X.distance(u, v).expand(4, 3) / 4)
    close(X.geodesic(u, v, 0.5), line[2])


def test_orthonormal_points_span_the_same(X):
    p = points(3, X)
    Q, R = X.qr(p)
    close(X.gram(Q), torch.eye(3))
    close(X.combine(R.mT, Q), p, 1e-8)
    assert (R.diagonal() > 0).all() and torch.equal(R, R.triu())
    close(X.project(p, X.orthonormalize(p)), p, 1e-8)
    with pytest.raises(ValueError, match="independent"):
        X.qr(torch.cat([p, X.add(p[:1], p[1:2])]))
    with pytest.raises(ValueError, match="independent"):
        X.qr(points(5, X))


def test_projection_leaves_a_residual_at_right_angles(X):
    basis, x = points(2, X), points(6, X)
    nearest = X.project(x, basis)
    close(X.gram(X.sub(x, nearest), basis), torch.zeros(6, 2), floor=1.0)
    close(X.project(nearest, basis), nearest, 1e-8)
    close(X.combine(X.lstsq(basis, x), basis), nearest, 1e-8)
    dependent = torch.cat([basis, basis])
    close(X.project(x, dependent), nearest, 1e-8)


def test_pca_rebuilds_the_points(X):
    x = points(50, X)
    mean, components, variance, scores = X.pca(x)
    close(X.gram(components), torch.eye(4))
    rebuilt = X.add(mean, X.combine(scores, components))
    close(rebuilt, x, 1e-8)
    close(scores.var(0), variance)
    assert (variance[:-1] >= variance[1:]).all()
    assert X.pca(x, 2).components.shape == (2, 4)


def test_a_layer_that_keeps_images_is_flattened():
    X = Space(Squeeze((1, 4, 4)))
    assert X.coordinates(torch.randn(2, 1, 4, 4)).shape == (2, 16)
    E = Space(Flatten((2, 3)))
    u, v = torch.randn(2, 5, 2, 3)
    close(E.add(u, v), u + v)


def test_operations_are_differentiable(X):
    u, v = points(3, X).requires_grad_(), points(3, X)
    X.add(u, v).sum().backward()
    assert u.grad.abs().min() > 0
    assert all(p.grad is not None for p in X.parameters())


def test_bad_points_get_a_sentence(X):
    with pytest.raises(ValueError, match=r"expected points of shape \(batch, 4\), got \(4,\).*x\["):
        X.norm(torch.randn(4))
    with pytest.raises(ValueError, match=r"got \(3, 5\)"):
        X.norm(torch.randn(3, 5))
    with pytest.raises(ValueError, match="float64, as its weights, got torch.float32"):
        X.norm(torch.randn(3, 4, dtype=torch.float32))
    with pytest.raises(ValueError, match="got torch.int64"):
        X.norm(torch.ones(3, 4, dtype=torch.int64))
    with pytest.raises(TypeError, match="got list"):
        X.norm([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match="on cpu, where its weights are, got meta"):
        X.norm(torch.randn(3, 4, device="meta"))
    with pytest.raises(ValueError, match="1 or more points, got 0"):
        X.mean(torch.randn(0, 4))
    with pytest.raises(ValueError, match="NaN"):
        X.pca(torch.full((3, 4), math.nan))
    with pytest.raises(ValueError, match="one weight for each of 3 points"):
        X.combine([1.0, 2.0], points(3, X))
    with pytest.raises(ValueError, match="1 ≤ k ≤ 4"):
        X.pca(points(9, X), 5)
    with pytest.raises(ValueError, match="one length .*got 3 and 2 points"):
        X.add(points(3, X), points(2, X))
    with pytest.raises(ValueError, match=r"one for each of 3 points, got a tensor of shape \(2,\)"):
        X.scale(torch.ones(2), points(3, X))
    with pytest.raises(TypeError, match="expected a Bijection, got Linear"):
        Space(torch.nn.Linear(3, 3))


def test_an_empty_batch_gives_an_empty_batch(X):
    none = points(0, X)
    assert X.add(none, none).shape == (0, 4) and X.norm(none).shape == (0,)


def test_nan_stays_in_its_own_sample():
    X = Space(shaken(glow((1, 4, 4), blocks=2)))
    x = torch.randn(3, 1, 4, 4)
    broken = x.clone()
    broken[1] = math.nan
    out = X.scale(0.5, broken)
    assert out[1].isnan().all()
    close(out[[0, 2]], X.scale(0.5, x)[[0, 2]])


def test_the_origin_takes_the_dtype_of_weights_not_of_indices():
    class Shuffled(Flatten):
        def __init__(self):
            super().__init__((3,))
            order = torch.tensor([2, 0, 1])
            self.order = torch.nn.Parameter(order, requires_grad=False)
            self.scale = torch.nn.Parameter(torch.ones(3, dtype=torch.float32))

        def forward(self, x):
            return x[:, self.order] * self.scale

        def inverse(self, z):
            return (z / self.scale)[:, self.order.argsort()]

    origin = Space(Shuffled()).zero()
    assert origin.dtype == torch.float32 and origin.shape == (1, 3)
