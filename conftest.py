"""Names that the examples in docstrings use, and a fixed seed for them."""

import pytest
import torch

import linearizer as lz
from linearizer.apps import registry


@pytest.fixture(autouse=True)
def names_of_the_examples(doctest_namespace):
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    doctest_namespace.update(vars(lz.bijections), **vars(lz.operators), torch=torch, lz=lz)
    doctest_namespace.update(Space=lz.Space, Linearizer=lz.Linearizer)
    yield
    torch.set_default_dtype(dtype)
    registry._registered.clear()  # applications that an example has loaded from a file
