"""Catalogue × laws."""

import inspect

import pytest
import torch

import laws
from catalogue import BIJECTIONS, OPERATORS, shaken
from linearizer import Linearizer, Space, bijections, operators


@pytest.mark.parametrize("law", laws.ANY, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name, law):
    law(OPERATORS[name]())


SQUARES = [n for n, make in OPERATORS.items() if (A := make()).shape[0] == A.shape[1]]


@pytest.mark.parametrize("law", laws.SQUARE, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", SQUARES)
def test_square_operator(name, law):
    law(OPERATORS[name]())


@pytest.mark.parametrize("second", OPERATORS)
@pytest.mark.parametrize("first", OPERATORS)
def test_products_and_sums_equal_the_dense_ones(first, second):
    A, B = OPERATORS[first](), OPERATORS[second]()
    if A.shape[1] == B.shape[0]:
        laws.close((A @ B).dense(), A.dense() @ B.dense(), floor=1e-9)
    if A.shape == B.shape:
        laws.close((A + B).dense(), A.dense() + B.dense(), floor=1e-9)
        laws.close((A - B).dense(), A.dense() - B.dense(), floor=1e-6)


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
        here = {
            c
            for _, c in inspect.getmembers(module, inspect.isclass)
            if issubclass(c, base) and not inspect.isabstract(c)
        }
        covered = {type(m) for make in catalogue.values() for m in make().modules()}
        assert here <= covered, here - covered
