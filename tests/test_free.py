"""Operators known by functions, and SciPy's."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as sparse
import torch

from catalogue import OPERATORS
from laws import close
from linearizer import Linearizer, Space
from linearizer.bijections import mlp
from linearizer.operators import Dense, LowRank, MatrixFree, from_callable, from_scipy


def rolling(n):
    """The sum of each number and half of its left neighbour."""
    return MatrixFree(lambda z: z + 0.5 * z.roll(1, -1), lambda w: w + 0.5 * w.roll(-1, -1), (n, n))


def dense(M):
    return MatrixFree(lambda z: z @ M.mT, lambda w: w @ M, tuple(M.shape))


def test_functions_compose_without_a_matrix():
    A, n = rolling(50_000), 50_000
    z = torch.randn(2, n)
    B = (2.0 * A @ A.T - A) @ A
    assert isinstance(B, MatrixFree) and B.shape == (n, n)
    close(B(z), 2 * A(A.T(A(z))) - A(A(z)))
    close((B.T(z) * z).sum(-1), (B(z) * z).sum(-1))
    w = A.solve(z)
    close(A(w), z, 1e-12)


@pytest.mark.parametrize("shape", [(90, 70), (70, 90)])
def test_krylov_singular_values_are_those_of_the_matrix(shape):
    M = torch.randn(*shape)
    A = dense(M)
    U, S, V = A.svd(4)
    expected = Dense(M).svd(4)
    close(S, expected.S, 1e-12)
    close(U, expected.U, 1e-9)
    close(V, expected.V, 1e-9)


def test_krylov_finds_values_that_are_equal():
    Q = torch.linalg.qr(torch.randn(120, 120))[0]
    values = torch.cat([torch.full((3,), 5.0), torch.rand(117)])
    close(dense((Q * values) @ Q.mT).svd(4).S, values.sort(descending=True).values[:4], 1e-12)


def test_krylov_eigenvalues_and_solutions():
    M = torch.randn(120, 120) / 11
    A = dense(M)
    values, vectors = A.eig(5)
    expected = torch.linalg.eigvals(M).abs().sort(descending=True).values[:5]
    close(values.abs(), expected, 1e-10)
    close(M.to(vectors.dtype) @ vectors, vectors * values, 1e-9)
    w = torch.randn(3, 120)
    z = A.solve(w)
    assert float((A(z) - w).norm() / (M.norm() * z.norm())) < 1e-13
    with pytest.raises(ValueError, match="singular"):
        dense(torch.randn(60, 5) @ torch.randn(5, 60)).solve(torch.randn(1, 60))


def test_values_have_gradients():
    c = torch.tensor(2.0, requires_grad=True)
    diagonal = torch.arange(1.0, 101.0)
    A = MatrixFree(lambda z: c * diagonal * z, lambda w: c * diagonal * w, (100, 100))
    S = A.svd(2).S
    close(S, torch.tensor([200.0, 198.0]), 1e-12)
    (gradient,) = torch.autograd.grad(S.sum(), c)
    assert float(gradient) == pytest.approx(199.0)


def test_functions_of_one_vector():
    A = from_callable(lambda z: z.cumsum(0), lambda w: w.flip(0).cumsum(0).flip(0), (4, 4))
    close(A.dense(), torch.ones(4, 4).tril())
    close(A.T.dense(), torch.ones(4, 4).triu())
    with pytest.raises(TypeError, match="two functions of a vector"):
        from_callable(lambda z: z, None, (4, 4))
    with pytest.raises(ValueError, match="rows of 3 numbers"):
        from_callable(lambda z: z, lambda w: w, (3, 4))(torch.ones(1, 4))


SINGLE = [name for name, make in OPERATORS.items() if make().batch is None]


@pytest.mark.parametrize("name", SINGLE)
def test_every_operator_is_one_of_scipy(name):
    A = OPERATORS[name]()
    L, M = sparse.aslinearoperator(A), A.dense().numpy()
    v, w = np.random.default_rng(0).standard_normal((2, max(A.shape)))
    np.testing.assert_allclose(L @ v[: A.shape[1]], M @ v[: A.shape[1]], atol=1e-9)
    np.testing.assert_allclose(L.H @ w[: A.shape[0]], M.T @ w[: A.shape[0]], atol=1e-9)
    np.testing.assert_allclose(np.asarray(A), M)
    assert L.dtype == M.dtype and A.to_scipy().shape == A.shape and A.dtype == torch.float64


def test_numbers_of_numpy_multiply():
    A = Dense(torch.eye(2))
    for c in (np.float64(2), np.float32(2), np.int64(2)):
        for B in (c * A, A * c):
            assert isinstance(B, Dense)
            close(B.dense(), 2 * torch.eye(2))


def test_an_operator_of_scipy_is_a_core():
    M = scipy.sparse.random(6, 4, 0.6, rng=np.random.default_rng(0)).tocsr()
    A = from_scipy(M)
    dense = torch.as_tensor(M.toarray())
    close(A.dense(), dense)
    f = Linearizer(Space(mlp(4)), A, Space(mlp(6)))
    x = torch.randn(3, 4, requires_grad=True)
    twin = Linearizer(f.source, Dense(dense), f.target)
    close(f(x), twin(x))
    close(*(torch.autograd.grad(h(x).sum(), x)[0] for h in (f, twin)))
    close(f.pinv()(f(x)), twin.pinv()(twin(x)), 1e-8)


def test_leading_values_by_scipy():
    A = LowRank(torch.randn(30, 5), torch.randn(20, 5))
    found = sparse.svds(sparse.aslinearoperator(A), k=3, return_singular_vectors=False)
    np.testing.assert_allclose(np.sort(found)[::-1], A.svd(3).S.numpy())
