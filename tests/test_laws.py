"""Catalogue × laws."""

import itertools
import math
import operator

import pytest
import torch
from torch import nn
from torch.autograd.gradcheck import GradcheckError

import laws
from catalogue import BIJECTIONS, CLASSES, GENERIC, OPERATORS, SQUARE, concrete, shaken
from linearizer import Linearizer, Space, bijections, operators
from linearizer.operators import (
    BlockDiagonal,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    LowRank,
    MixingConvolution,
    Projector,
    ScaledIdentityPlusLowRank,
    Spirals,
)


@pytest.mark.parametrize("law", laws.ANY, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name, law):
    law(OPERATORS[name]())


SQUARES = [n for n, make in OPERATORS.items() if (A := make()).shape[0] == A.shape[1]]


@pytest.mark.parametrize("law", laws.SQUARE, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", SQUARES)
def test_square_operator(name, law):
    law(OPERATORS[name]())


def operands(kind):
    """Operators of a class, single, with a batch axis, and with one in some tensors alone."""
    generics = [generic for generic in GENERIC.values() if generic.kind is kind]
    made = [generic.make(batch) for generic in generics for batch in (None, 3)]
    return [A for A in made if A.batch is None or A.batch == 3]


@pytest.mark.parametrize("second", CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("first", CLASSES, ids=lambda c: c.__name__)
def test_products_and_sums_equal_the_dense_ones(first, second):
    done = {}
    for A, B in itertools.product(operands(first), operands(second)):
        assert type(A) is first and type(B) is second
        done.setdefault((A.batch, B.batch), set()).update(laws.pair(A, B))
    batches = [{A.batch for A in operands(kind)} for kind in (first, second)]
    assert done == {key: {"@", "+", "-"} for key in itertools.product(*batches)}
    allowed = ({None}, {None, 3})
    assert batches[0] in allowed and batches[1] in allowed


def test_every_ordered_pair_of_classes_is_multiplied_and_added():
    covered = {
        (first.kind, second.kind)
        for first, second in itertools.product(GENERIC.values(), GENERIC.values())
        if first.make().shape == second.make().shape == (12, 12)
    }
    assert covered == set(itertools.product(CLASSES, CLASSES))
    alone = {kind for kind in CLASSES if {A.batch for A in operands(kind)} == {None}}
    assert {kind.__name__ for kind in alone} <= {"Identity", "MatrixFree"}  # they have no batch


# -- what an operation returns -----------------------------------------------------------------


def learned(name, wrap=nn.Parameter):
    generic = GENERIC[name]
    tensors = {k: wrap(t) for k, t in generic.draw().items()}
    return generic.build(**tensors), list(tensors.values())


EYE = torch.eye(12, dtype=torch.float64)
OPERATIONS = {
    "2 * A": (lambda A: 2 * A, lambda M: 2 * M),
    "-A": (lambda A: -A, lambda M: -M),
    "A / 2": (lambda A: A / 2, lambda M: M / 2),
    "A @ A": (lambda A: A @ A, lambda M: M @ M),
    "A @ A.T": (lambda A: A @ A.T, lambda M: M @ M.mT),
    "A + A": (lambda A: A + A, lambda M: M + M),
    "A - A": (lambda A: A - A, lambda M: M - M),
    "A ** 0": (lambda A: A**0, lambda M: EYE),
    "A ** 1": (lambda A: A**1, lambda M: M),
    "A ** 2": (lambda A: A**2, lambda M: M @ M),
    "A ** -1": (lambda A: A**-1, torch.linalg.inv),
    "A ** 0.5": (lambda A: A**0.5, None),
    "A.T": (lambda A: A.T, lambda M: M.mT),
    "A.inverse()": (lambda A: A.inverse(), torch.linalg.inv),
    "A.pinv()": (lambda A: A.pinv(), lambda M: torch.linalg.pinv(M, rtol=1e-10)),
    "A.exp()": (lambda A: A.exp(), torch.linalg.matrix_exp),
}
INVERTING = ("A ** -1", "A.inverse()")
SINGULAR = ("projector", "low rank", "low rank, one batch")
#: Of a projector these are the projector, and pass its gradient on as it is.
IDEMPOTENT = ("A @ A", "A @ A.T", "A ** 2", "A ** 0.5", "A.pinv()")
KINDS = [name for name in GENERIC if not name.endswith(("batch", "batch of alpha"))]
ALONE = [name for name in SQUARE if name in KINDS]
SHAPELESS = ("2 * A", "-A", "A / 2", "A @ A.T", "A + A", "A - A", "A.T", "A.pinv()")
CASES = [
    (name, operation)
    for name in KINDS
    for operation in (OPERATIONS if name in SQUARE else SHAPELESS)
    if not (name in SINGULAR and operation in INVERTING)
]


@pytest.mark.parametrize("name, operation", CASES)
@pytest.mark.parametrize("wrap", [nn.Parameter, torch.clone], ids=["learned", "fixed"])
def test_what_an_operation_returns_is_its_own(name, operation, wrap):
    A, _ = learned(name, wrap)
    laws.own_core([A], OPERATIONS[operation][0](A))


@pytest.mark.parametrize("name, operation", [c for c in CASES if GENERIC[c[0]].tensors])
def test_what_an_operation_returns_has_the_dense_gradient(name, operation):
    A, tensors = learned(name)
    found, dense = OPERATIONS[operation][0](A).dense(), A.dense()
    if name == "projector" and operation in IDEMPOTENT:
        expected = dense
    elif operation == "A ** 0.5":  # the square of the root
        found, expected = found @ found, dense
    else:
        expected = OPERATIONS[operation][1](dense)
    laws.close(found, expected, 1e-10, floor=1.0)
    if operation == "A ** 0":
        assert not found.requires_grad
    else:
        laws.same_gradient(tensors, found, expected)


@pytest.mark.parametrize("name", SINGULAR)
def test_a_singular_operator_has_no_inverse(name):
    for operation in INVERTING:
        with pytest.raises(ValueError, match="singular"):
            OPERATIONS[operation][0](GENERIC[name].make())


COMPRESSED = [name for name in KINDS if hasattr(GENERIC[name].kind, "compress")]


@pytest.mark.parametrize("wrap", [nn.Parameter, torch.clone], ids=["learned", "fixed"])
@pytest.mark.parametrize("name", COMPRESSED)
@torch.no_grad()
def test_what_compress_returns_is_its_own(name, wrap):
    A, _tensors = learned(name, wrap)
    laws.close(A.compress().dense(), A.dense(), 1e-13)
    laws.own_core([A], A.compress())
    empty = GENERIC[name].build(
        **{k: wrap(t[..., :0] if t.ndim else t) for k, t in A.state_dict().items()}
    )
    laws.own_core([empty], empty.compress())


@pytest.mark.parametrize("second", ALONE)
@pytest.mark.parametrize("first", ALONE)
def test_what_two_operators_give_is_their_own(first, second):
    for sign in (operator.matmul, operator.add, operator.sub):
        (A, a), (B, b) = learned(first), learned(second)
        both = sign(A, B)
        if tensors := [*a, *b]:
            straight = {type(A), type(B)} == {Projector} and sign is operator.matmul
            expected = (
                Projector(torch.minimum(*tensors)).dense()
                if straight
                else sign(A.dense(), B.dense())
            )
            laws.same_gradient(tensors, both.dense(), expected)
        laws.own_core([A, B], both)


# -- derivatives -------------------------------------------------------------------------------

TWICE = {
    "svd": lambda A: A.svd().S,
    "pinv": lambda A: A.pinv().dense(),
    "exp": lambda A: A.exp(0.7).dense(),
    "power": lambda A: torch.stack([(A**p).dense() for p in (2, 3, 5)]),
    "inverse": lambda A: (A**-2).dense(),
}
LEARNED = [name for name in ALONE if GENERIC[name].tensors]


@pytest.mark.parametrize("what", TWICE)
@pytest.mark.parametrize("name", LEARNED)
def test_second_derivatives_are_right_or_refused(name, what):
    if (name in SINGULAR and what == "inverse") or name == "projector":
        return
    generic = GENERIC[name]
    tensors = {k: t.requires_grad_() for k, t in generic.draw().items()}

    def function(*values):
        return TWICE[what](generic.build(**dict(zip(tensors, values, strict=True))))

    try:
        assert torch.autograd.gradgradcheck(function, tuple(tensors.values()), fast_mode=True)
    except GradcheckError:
        raise
    except (RuntimeError, ValueError) as error:
        message = str(error)
        assert what in message and "\n" not in message and len(message) < 300, message


CUT = [name for name in KINDS if name not in ("identity", "projector", "matrix free")]


@pytest.mark.parametrize("name", CUT)
def test_pinv_that_cuts_a_singular_value_has_its_gradient(name):
    generic = GENERIC[name]
    tensors = {k: t.requires_grad_() for k, t in generic.draw().items()}
    S = torch.linalg.svdvals(generic.build(**tensors).dense().detach())
    S = S[1e-9 * S[0] < S]
    i = int((S[:-1] / S[1:])[: len(S) - 1].argmax())  # σ_i and what is above it stays
    rtol = float((S[i] * S[i + 1]).sqrt() / S[0])
    M = generic.build(**tensors).dense()
    laws.close(generic.build(**tensors).pinv(rtol).dense(), torch.linalg.pinv(M, rtol=rtol), 1e-11)

    def function(*values):
        return generic.build(**dict(zip(tensors, values, strict=True))).pinv(rtol).dense()

    assert torch.autograd.gradcheck(function, tuple(tensors.values()), fast_mode=True)


# -- projectors --------------------------------------------------------------------------------


def ill_conditioned(name, cond):
    """An operator with singular values 1 … 1/cond and some zeros, exact but for rounding."""
    values = torch.logspace(0, -math.log10(cond), 9)
    some = torch.cat([values, torch.zeros(3)])
    Q, R = (torch.linalg.qr(torch.randn(12, 12))[0] for _ in range(2))
    P = torch.linalg.qr(torch.randn(24, 12))[0]
    turn = torch.linalg.qr(torch.randn(3, 3, 3))[0]
    if name == "dense":
        return Dense((Q * some) @ R.mT)
    if name == "dense, tall":
        return Dense((P * some) @ R.mT)
    if name == "dense, wide":
        return Dense((R * some) @ P.mT)
    if name == "diagonal":
        return Diagonal(some[torch.randperm(12)])
    if name == "projector":
        return Projector(torch.randn(12))
    if name == "identity":
        return Identity(12)
    if name == "low rank":
        return LowRank(Q[:, :9] * values.sqrt(), R[:, :9] * values.sqrt())
    if name == "low rank, skew":  # no column is along a singular vector
        mix = torch.linalg.qr(torch.randn(9, 9))[0]
        return LowRank((Q[:, :9] * values) @ mix, R[:, :9] @ mix)
    if name == "low rank, tall":
        return LowRank(P[:, :9] * values, R[:, :9])
    if name == "scaled identity + low rank":
        low = torch.tensor([1e3 / cond, 10 / cond, 1 / cond, 0.0, 0.0])
        return ScaledIdentityPlusLowRank(1.0, Q[:, :5] * (low - 1.0), Q[:, :5])
    if name == "block diagonal":
        sizes = torch.stack([torch.tensor([1.0, 0.1, 0.0]), values[-3:], torch.zeros(3)])
        return BlockDiagonal((turn * sizes[:, None]) @ turn.flip(0).mT)
    if name == "spirals":
        return Spirals(
            torch.tensor([0.6, 3 / cond, 0.0]), torch.tensor([0.8, 4 / cond, 0.0]), values[:3]
        )
    waves = torch.fft.rfft2(torch.randn(4, 4))  # of a real kernel
    factor = torch.tensor(
        [[1.0, 0.1, 0.0], [1 / cond, 1.0, 0.2], [0.3, 0.0, 1.0], [1 / cond, 1.0, 0.2]]
    )
    wave = waves / waves.abs() * factor
    if name == "convolution":
        return Convolution(torch.fft.irfft2(wave, s=(4, 4))[None], (1, 4, 4), "circular", (0, 0))
    assert name == "mixing convolution"
    A, B = torch.linalg.qr(torch.randn(2, 2, 2))[0]
    kernels = torch.fft.irfft2(torch.stack([wave, wave.flip(-1)]).conj(), s=(4, 4))
    return MixingConvolution(torch.einsum("ok,khw,ck->ochw", A, kernels, B), (2, 4, 4), (0, 0))


ILL = [
    "identity",
    "dense",
    "dense, tall",
    "dense, wide",
    "diagonal",
    "projector",
    "low rank",
    "low rank, skew",
    "low rank, tall",
    "scaled identity + low rank",
    "block diagonal",
    "spirals",
    "convolution",
    "mixing convolution",
]
PRECISIONS = {"float32": (torch.float32, 1e4), "float64": (torch.float64, 1e10)}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ILL)
@torch.no_grad()
def test_projectors_do_not_lose_the_condition_number(name, precision):
    dtype, cond = PRECISIONS[precision]
    A = ill_conditioned(name, cond)
    S = torch.linalg.svdvals(A.dense())
    rank, bound = int((0.5 * S[0] / cond < S).sum()), 32 * torch.finfo(dtype).eps
    A = A.to(dtype)
    assert A.rank() == rank
    f = Linearizer(
        Space(bijections.Flatten((A.shape[1],))), A, Space(bijections.Flatten((A.shape[0],)))
    )
    M = A.dense()
    M = M / torch.linalg.matrix_norm(M, 2)
    P, N = f.range_projector().operator.dense(), f.null_projector().operator.dense()
    for X, count in ((P, rank), (N, A.shape[1] - rank)):
        assert torch.linalg.matrix_norm(X @ X - X, 2) <= bound
        assert torch.linalg.matrix_norm(X - X.mT, 2) <= bound
        assert abs(float(X.trace()) - count) <= 12 * bound
    assert torch.linalg.matrix_norm(P @ M - M, 2) <= bound
    assert torch.linalg.matrix_norm(M @ N, 2) <= bound
    null = f.null_space()
    assert null.shape == (A.shape[1] - rank, A.shape[1])
    if len(null):
        assert torch.linalg.matrix_norm(M @ null.mT, 2) <= bound
        assert torch.linalg.matrix_norm(null @ null.mT - torch.eye(len(null)).to(null), 2) <= bound


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("points", [5, 12, 20])
def test_projections_of_a_space_do_not_lose_the_condition_number(points, precision):
    dtype, cond = PRECISIONS[precision]
    X = Space(bijections.Flatten((12,)))
    k = min(points, 12) - 1
    left, right = torch.linalg.qr(torch.randn(points, k))[0], torch.linalg.qr(torch.randn(12, k))[0]
    basis = ((left * torch.logspace(0, -math.log10(cond), k)) @ right.mT).to(dtype)
    P = X.project(torch.eye(12, dtype=dtype), basis)
    bound = 32 * torch.finfo(dtype).eps
    assert torch.linalg.matrix_norm(P @ P - P, 2) <= bound
    assert torch.linalg.matrix_norm(P - P.mT, 2) <= bound
    assert torch.linalg.matrix_norm(X.project(basis, basis) - basis, 2) <= bound
    assert abs(float(P.trace()) - k) <= 12 * bound


# -- bijections --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BIJECTIONS)
def test_bijection_round_trips(name):
    g = shaken(BIJECTIONS[name]())
    x, z = torch.randn(6, *g.shape), torch.randn(6, *g.out_shape)
    assert g(x).shape == (6, *g.out_shape)
    laws.close(g.inverse(g(x)), x, 1e-8)
    laws.close(g(g.inverse(z)), z, 1e-8)


@pytest.mark.parametrize("name", BIJECTIONS)
def test_bijection_log_det_is_that_of_the_jacobian(name):
    g = shaken(BIJECTIONS[name]())
    x = torch.randn(1, *g.shape)
    z, log_det = g.with_log_det(x)
    laws.close(z, g(x))
    with torch.no_grad():
        jacobian = torch.autograd.functional.jacobian(lambda v: g(v).flatten(), x, vectorize=False)
    expected = torch.linalg.slogdet(jacobian.reshape(g.dim, g.dim)).logabsdet
    laws.close(log_det, expected[None], 1e-8, floor=1.0)


@pytest.mark.parametrize("name", BIJECTIONS)
def test_bijection_reloads(name):
    g = shaken(BIJECTIONS[name]())
    torch.manual_seed(1)
    twin = BIJECTIONS[name]()
    twin.load_state_dict(g.state_dict())
    x = torch.randn(2, *g.shape)
    assert torch.equal(g(x), twin(x))


@pytest.mark.parametrize("name", BIJECTIONS)
def test_bijection_keeps_samples_apart_and_takes_an_empty_batch(name):
    g = shaken(BIJECTIONS[name]())
    x = torch.randn(3, *g.shape)
    laws.close(g(x)[1:2], g(x[1:2]))
    assert g(x[:0]).shape == (0, *g.out_shape)
    assert g.inverse(g(x[:0])).shape == (0, *g.shape)


CORES = [
    "dense, tall",
    "dense, singular",
    "diagonal, singular",
    "low rank, wide",
    "scaled identity + low rank",
    "convolution, circular, singular",
    "projector",
]


@pytest.mark.parametrize("name", CORES)
def test_every_law_of_a_linearizer(name):
    A = OPERATORS[name]()
    X, Y = (Space(shaken(bijections.mlp(n, blocks=2, hidden=16))) for n in A.shape[::-1])
    f = Linearizer(X, A, Y)
    certificate = f.certify(torch.randn(5, X.dim))
    assert certificate.passed, str(certificate)
    assert all(law.error is not None for law in certificate.laws)


def test_every_concrete_class_is_in_the_catalogue():
    for module, base, catalogue in (
        (operators, operators.Operator, OPERATORS),
        (bijections, bijections.Bijection, BIJECTIONS),
    ):
        here = concrete(module, base)
        covered = {type(m) for make in catalogue.values() for m in make().modules()}
        assert here <= covered, here - covered
