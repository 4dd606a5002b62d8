"""A stranger's operator: structured products, without a change to the library."""

import pytest
import torch

from laws import close
from linearizer.operators import (
    Dense,
    Diagonal,
    Identity,
    Operator,
    add,
    product,
    register,
)


class Reversal(Operator):
    """c times the coordinates in reverse order."""

    def __init__(self, c, n):
        super().__init__()
        self.register_buffer("c", c)
        self.n = n

    @property
    def shape(self):
        return self.n, self.n

    @property
    def T(self):
        return Reversal(self.c.clone(), self.n)

    def forward(self, z):
        return self.c * z.flip(-1)


@register(product, Reversal, Reversal)
def multiply(A, B):
    return Identity(A.n) * (A.c * B.c)


@register(add, Reversal, Reversal)
def total(A, B):
    return Reversal(A.c + B.c, A.n)


def test_a_rule_is_used_and_everything_else_follows_densely():
    A, B = Reversal(torch.tensor(2.0), 5), Reversal(torch.tensor(3.0), 5)
    assert isinstance(A + B, Reversal) and not isinstance(A @ B, Dense)
    flip = torch.eye(5).flip(0)
    close((A @ B).dense(), 6 * torch.eye(5))
    close((A + B).dense(), 5 * flip)
    close(A.pinv().dense(), flip / 2)
    close((A @ Diagonal(torch.arange(5.0))).dense(), 2 * flip @ torch.diag(torch.arange(5.0)))
    close((A @ A.inverse()).dense(), torch.eye(5))
    assert (A**0).dense().equal(torch.eye(5)) and A.rank() == 5


def test_the_nearest_rule_wins_and_a_rule_may_decline():
    class Special(Reversal):
        pass

    assert isinstance(Special(torch.tensor(2.0), 3) + Special(torch.tensor(1.0), 3), Reversal)

    @register(add, Special, Reversal)
    def _(A, B):
        return Dense(torch.zeros(3, 3)) if A.n == 3 else NotImplemented

    one = torch.tensor(1.0)
    assert isinstance(Special(one, 3) + Special(one, 3), Dense)
    assert isinstance(Special(one, 4) + Special(one, 4), Reversal)


def test_a_rule_for_the_wrong_number_of_classes_is_refused():
    with pytest.raises(TypeError, match=r"register\(product, …\): expected 2 classes"):
        register(product, Reversal)(multiply)
