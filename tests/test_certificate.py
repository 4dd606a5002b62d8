"""A certificate passes what is right in every dtype, and fails every planted fault."""

import math

import pytest
import torch

from catalogue import BIJECTIONS, shaken
from linearizer import Linearizer, Space
from linearizer.bijections import Bijection, Flatten, mlp
from linearizer.certificate import certify
from linearizer.operators import Convolution, Dense, Eig, Operator


def space(n):
    return Space(shaken(mlp(n, blocks=2, hidden=16)))


@pytest.fixture
def X():
    return space(4)


@pytest.fixture
def Y():
    return space(3)


def test_a_table_with_a_verdict(X, Y):
    f = Linearizer(X, Dense(torch.randn(3, 4)), Y)
    certificate = f.certify(torch.randn(5, 4))
    text = str(certificate)
    assert certificate.passed and certificate.complete and "Penrose 4" in text
    assert f"{len(certificate.laws)} of {len(certificate.laws)} laws measured" in text
    assert "digits" in text and set(certificate.condition) == {"X", "Y"}
    names = {law.name for law in certificate.laws}
    assert {"linearity", "adjoint", "composition", "round trip X", "associative Y"} <= names
    assert not names & {"power", "exponential", "eigenvectors"}  # f ends in another Space
    strict = f.certify(torch.randn(5, 4), tolerance=1e-30)
    assert not strict.passed and "FAIL" in str(strict) and strict.to_dict()["passed"] is False


def test_an_endomorphism_has_laws_of_powers_and_flows(X):
    f = Linearizer(X, Dense(0.5 * torch.randn(4, 4)), X)
    certificate = f.certify(torch.randn(5, 4))
    names = {law.name for law in certificate.laws}
    assert {"power", "exponential", "eigenvectors", "eigenvalues", "inverse"} <= names
    assert certificate.passed and certificate.complete, str(certificate)


def test_it_tells_how_far_it_is(X, Y):
    told = []
    certificate = certify(
        Linearizer(X, Dense(torch.randn(3, 4)), Y), torch.randn(5, 4),
        seen=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    total = len(certificate.laws)
    assert told == [(k, total) for k in range(total)]


def test_it_sees_a_broken_inverse(Y):
    class Broken(Flatten):
        def inverse(self, z):
            return super().inverse(z) * 1.001

    f = Linearizer(Space(Broken((4,))), Dense(torch.randn(3, 4)), Y)
    failed = {law.name for law in f.certify(torch.randn(5, 4)).failed}
    assert {"round trip X", "linearity", "Penrose 2"} <= failed


class Rounded(Bijection):
    """g whose coordinates are rounded to float16."""

    def __init__(self, g):
        super().__init__(g.shape)
        self.g = g

    def forward(self, x):
        return self.g(x).half().to(x.dtype)

    def inverse(self, z):
        return self.g.inverse(z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_sees_rounding_that_is_not_of_the_dtype(dtype):
    for g in (mlp(6, blocks=2, hidden=16), Flatten((6,))):
        X = Space(Rounded(shaken(g)).to(dtype))
        f = Linearizer(X, Dense(torch.randn(6, 6, dtype=dtype)), X)
        certificate = f.certify(torch.randn(8, 6, dtype=dtype))
        assert not certificate.passed and certificate.failed, str(certificate)
        true = Linearizer(Space(X.g.g), f.operator, Space(X.g.g))
        assert true.certify(torch.randn(8, 6, dtype=dtype)).passed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BIJECTIONS)
def test_every_bijection_passes_in_both_dtypes(name, dtype):
    X = Space(shaken(BIJECTIONS[name]()).to(dtype))
    U = torch.randn(X.dim, 2, dtype=dtype) / X.dim**0.5
    f = Linearizer(X, Dense(torch.eye(X.dim, dtype=dtype) + U @ U.mT), X)
    certificate = f.certify(torch.randn(5, *X.shape, dtype=dtype))
    assert not certificate.failed, str(certificate)
    assert certificate.passed or dtype == torch.float32, str(certificate)


class Faulty(Operator):
    """A dense core in which one method is replaced by a wrong one."""

    fault = ""

    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)

    @property
    def shape(self):
        return tuple(self.matrix.shape)

    @property
    def T(self):
        return Faulty(1.01 * self.matrix if self.fault == "T" else self.matrix.mT.clone())

    def forward(self, z):
        return z @ self.matrix.mT


def wrong_eig(A, k=None):
    values, vectors = Operator.eig(A, k)
    return Eig(1.01 * values, vectors)


def smallest_eig(A, k=None):
    """True pairs, but the smallest ones."""
    values, vectors = Operator.eig(A)
    return Eig(values.flip(0)[:k], vectors.flip(1)[:, :k])


FAULTS = {
    "__pow__": lambda A, p: Dense(1.01 * torch.linalg.matrix_power(A.matrix, int(p))),
    "exp": lambda A, t=1.0: Operator.exp(A, 2 * t),  # a semigroup still
    "eig": wrong_eig,
    "eig, smallest": smallest_eig,
    "scale": lambda A, c: Dense(abs(c) ** 1.01 * A.matrix),
    "inverse": lambda A: Dense(1.01 * torch.linalg.inv(A.matrix)),
    "pinv": lambda A, rtol=None: Dense(torch.linalg.pinv(A.matrix) + 1e-3),
    "svd": lambda A, k=None: Operator.svd(A, k)._replace(S=1.01 * Operator.svd(A, k).S),
    "__matmul__": lambda A, B: Dense(1.01 * A.matrix @ B.dense()),
    "__add__": lambda A, B: Dense(A.matrix + 1.01 * B.dense()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_fails_a_law(fault, X):
    method = fault.split(",")[0]
    kind = type("Planted", (Faulty,), {method: FAULTS[fault]})
    M = torch.eye(4) + 0.3 * torch.randn(4, 4)
    x = torch.randn(6, 4)
    assert Linearizer(X, Faulty(M), X).certify(x).passed
    certificate = Linearizer(X, kind(M), X).certify(x)
    assert certificate.failed and not certificate.passed, str(certificate)


def test_a_wrong_transpose_fails_a_law(X):
    kind = type("Planted", (Faulty,), {"fault": "T"})
    assert not Linearizer(X, kind(torch.randn(4, 4)), X).certify(torch.randn(6, 4)).passed


def test_what_is_not_measured_is_not_passed():
    E = Space(Flatten((1, 80, 80)))
    f = Linearizer(E, Convolution(torch.randn(1, 3, 3), (1, 80, 80), "zero"), E)
    certificate = f.certify(torch.randn(3, 1, 80, 80))
    skipped = certificate.unmeasured
    assert skipped and not certificate.complete and not any(law.passed for law in skipped)
    assert all(law.note for law in skipped)
    assert "not measured: " in str(certificate)
    assert certificate.passed  # all core laws were measured
    x = torch.randn(3, 1, 80, 80)
    bad = torch.where(torch.arange(3).view(3, 1, 1, 1) == 1, math.nan, x)
    for points, name in (((bad,), "x"), ((x, bad), "y")):
        says = rf"NaN or infinite values, in {name} or in g\({name}\) \(first in point 1\)\. Leave"
        with pytest.raises(ValueError, match=says):
            f.certify(*points)
    assert f(bad).isfinite().flatten(1).all(1).tolist() == [True, False, True]  # as in torch
    with pytest.raises(ValueError, match="empty"):
        f.certify(torch.randn(0, 1, 80, 80))


def test_a_law_that_raises_fails(X, Y):
    class Raising(Faulty):
        def pinv(self, rtol=None):
            raise ValueError("a fault in this pinv")

    certificate = Linearizer(X, Raising(torch.randn(3, 4)), Y).certify(torch.randn(5, 4))
    notes = {law.name: law.note for law in certificate.failed}
    assert "a fault in this pinv" in notes["Penrose 1"] and not certificate.passed


def test_a_zero_core_and_a_batch_of_cores_pass(X, Y):
    zero = Linearizer(X, Dense(torch.zeros(3, 4)), Y).certify(torch.randn(5, 4))
    assert zero.passed, str(zero)
    certificate = Linearizer(X, Dense(torch.randn(5, 3, 4)), Y).certify(torch.randn(5, 4))
    assert certificate.passed and 0 < certificate.measured < len(certificate.laws)


def test_arguments_are_taken_seriously(X, Y):
    f, x = Linearizer(X, Dense(torch.randn(3, 4)), Y), torch.randn(5, 4)
    assert not f.certify(x, tolerance=0.0).passed
    with pytest.raises(ValueError, match="tolerance ≥ 0"):
        f.certify(x, tolerance=-1.0)
    with pytest.raises(ValueError, match="as many y as x, got 5 x and 2 y"):
        f.certify(x, torch.randn(2, 3))


def test_a_badly_conditioned_g_is_told():
    class Stiff(Flatten):
        def forward(self, x):
            return torch.sinh(x)

        def inverse(self, z):
            return torch.asinh(z)

    X = Space(Stiff((3,)))
    f = Linearizer(X, Dense(torch.eye(3)), X)
    far = f.certify(12 + torch.rand(5, 3)).condition["X"]
    near = f.certify(torch.rand(5, 3)).condition["X"]
    assert far > 3 * near
