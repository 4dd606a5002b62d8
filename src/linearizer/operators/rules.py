r"""Functions of operators that are chosen by class: a table that anyone can add to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as pairs
from typing import Any, TypeVar

Rule = TypeVar("Rule", bound=Callable[..., Any])


class Rules:
    r"""A function whose rule is looked up by the classes of its operators, the nearest first.

    A rule that does not fit after all returns ``NotImplemented``, and the next one is tried. Of
    rules that are equally near the one registered first is taken.
    """

    def __init__(self, name: str, operators: int) -> None:
        self.name = name
        self.operators = operators
        self.table: dict[tuple[type, ...], Callable[..., Any]] = {}
        self._found: dict[tuple[type, ...], list[Callable[..., Any]]] = {}

    def add(self, kinds: tuple[type, ...], rule: Callable[..., Any]) -> None:
        if len(kinds) != self.operators or not all(isinstance(kind, type) for kind in kinds):
            raise TypeError(
                f"register({self.name}, …): expected {self.operators} classes of operators, "
                f"got {kinds}."
            )
        self.table[kinds] = rule
        self._found.clear()

    def __call__(self, *arguments: Any) -> Any:
        kinds = tuple(type(A) for A in arguments[: self.operators])
        if (rules := self._found.get(kinds)) is None:
            rules = self._found[kinds] = self._by_distance(kinds)
        for rule in rules:
            if (result := rule(*arguments)) is not NotImplemented:
                return result
        raise TypeError(f"{self.name}: no rule for {', '.join(kind.__name__ for kind in kinds)}.")

    def _by_distance(self, kinds: tuple[type, ...]) -> list[Callable[..., Any]]:
        order = {key: place for place, key in enumerate(self.table)}
        lines = [list(enumerate(kind.__mro__)) for kind in kinds]
        near = [
            (sum(step for step, _ in path), order[key])
            for path in pairs(*lines)
            if (key := tuple(kind for _, kind in path)) in order
        ]
        rules = list(self.table.values())
        return [rules[place] for _, place in sorted(near)]

    def __repr__(self) -> str:
        return f"<rules of {self.name} for {len(self.table)} kinds>"


def register(function: Rules, *kinds: type) -> Callable[[Rule], Rule]:
    r"""Say how operators of some classes are multiplied or added: a decorator for that rule.

    A rule returns an operator, or ``NotImplemented`` where it does not fit after all. It holds for
    subclasses too, unless they have a nearer one. Sizes, dtypes and batches agree when it is asked.

    Arguments:
        function: ``product`` or ``add``.
        kinds: The class of the left operator and that of the right one.

    Example:
        >>> class Flip(Operator):
        ...     shape = (3, 3)
        ...     T = property(lambda self: self)
        ...     _tensor = torch.zeros(())
        ...     def forward(self, z):
        ...         return z.flip(-1)
        >>> @register(product, Flip, Flip)
        ... def _(A, B):
        ...     return Identity(3)
        >>> Flip() @ Flip()
        Identity(shape=(3, 3))
    """

    def enter(rule: Rule) -> Rule:
        function.add(kinds, rule)
        return rule

    return enter


#: A B for two operators.
product = Rules("product", 2)
#: A + B for two operators.
add = Rules("add", 2)
#: I of the size, dtype and device of A.
identity = Rules("identity", 1)
#: The orthogonal projectors onto the range and the null space of A, for a given rtol.
range_of = Rules("range_projector", 1)
null_of = Rules("null_projector", 1)
#: A as an operator of SciPy.
to_scipy = Rules("to_scipy", 1)
