"""boosting.py: the trees are scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier

from linearizer.metrics.boosting import boost


def codes(seed: int, n: int, k: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, k))


def classes(x: np.ndarray, kinds: int) -> np.ndarray:
    """By a curved score of the codes with noise, about as many of each."""
    noise = np.random.default_rng(len(x)).normal(size=len(x))
    score = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] ** 2 * x[:, -1] + 0.3 * noise
    return np.searchsorted(np.quantile(score, np.linspace(0, 1, kinds + 1)[1:-1]), score)


@pytest.mark.parametrize("kinds", [2, 3, 6])
def test_the_trees_are_those_of_scikit_learn(kinds: int) -> None:
    x, x_test = codes(0, 3000, 4), codes(1, 1000, 4)
    y = classes(x, kinds)
    theirs = GradientBoostingClassifier(n_estimators=20, random_state=0).fit(x, y)
    found = boost(x, y, x_test, stages=20)
    # Small nodes have splits that gain the same, of which scikit-learn draws one.
    assert np.abs(found.importance - theirs.feature_importances_).max() < 2e-3
    assert (found.predicted == theirs.predict(x_test)).mean() >= 0.999


def test_of_one_code_everything_is_equal() -> None:
    x, x_test = codes(2, 800, 1), codes(3, 500, 1)
    y = np.searchsorted([-0.5, 0.1, 0.8], x[:, 0] + 0.4 * codes(4, 800, 1)[:, 0])
    theirs = GradientBoostingClassifier().fit(x, y)
    assert np.array_equal(boost(x, y, x_test).predicted, theirs.predict(x_test))


def test_values_that_recur_are_not_told_apart() -> None:
    x, x_test = codes(5, 2000, 3).round(1), codes(6, 800, 3).round(1)
    x[:, 2] = 0.25  # a constant
    y = classes(np.c_[x[:, :2], x[:, 1]], 3)
    theirs = GradientBoostingClassifier(n_estimators=15, random_state=0).fit(x, y)
    found = boost(x, y, x_test, stages=15)
    assert found.importance[2] == 0
    assert np.abs(found.importance - theirs.feature_importances_).max() < 2e-3
    assert (found.predicted == theirs.predict(x_test)).mean() >= 0.995


def test_values_that_are_near_are_one() -> None:
    x = np.array([[0.0], [5e-8], [0.0], [1.0], [1.0 + 1e-9]] * 50)
    y = np.array(["b", "a", "b", "c", "c"] * 50)
    theirs = GradientBoostingClassifier(n_estimators=5).fit(x, y)
    assert boost(x, y, x, stages=5).predicted.tolist() == theirs.predict(x).tolist()


def test_twins_share_what_they_gain() -> None:
    x = codes(7, 2000, 2)
    found = boost(np.c_[x, x[:, 0]], classes(x, 3), x[:1, [0, 1, 0]], stages=40)
    alone = boost(x, classes(x, 3), x[:1], stages=40)
    assert found.importance[[0, 2]].sum() == pytest.approx(alone.importance[0], abs=1e-3)
    assert abs(found.importance[0] - found.importance[2]) < 0.2 * alone.importance[0]


def test_names_of_classes_and_few_samples() -> None:
    x = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]])
    y = np.array([7, 3, 5])
    assert boost(x, y, x).predicted.tolist() == [7, 3, 5]


def test_codes_that_say_nothing_have_no_importance() -> None:
    found = boost(np.ones((20, 2)), np.arange(20) % 4 > 0, np.ones((3, 2)))
    assert found.importance.tolist() == [0, 0]
    assert found.predicted.tolist() == [True] * 3
    theirs = GradientBoostingClassifier().fit(np.ones((20, 2)), np.arange(20) % 2)
    balanced = boost(np.ones((20, 2)), np.arange(20) % 2, np.ones((3, 2)))
    assert balanced.predicted.tolist() == theirs.predict(np.ones((3, 2))).tolist()


def test_one_class_is_an_error() -> None:
    with pytest.raises(ValueError, match="two classes or more, got one"):
        boost(np.ones((5, 2)), np.zeros(5), np.ones((1, 2)))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e39])
def test_numbers_that_are_not_finite_are_an_error(wrong: float) -> None:
    x = np.ones((5, 2))
    x[3, 1] = wrong
    with pytest.raises(ValueError, match="expected finite numbers"):
        boost(x, np.arange(5) % 2, np.ones((1, 2)))
    with pytest.raises(ValueError, match="expected finite numbers"):
        boost(np.ones((5, 2)), np.arange(5) % 2, x)
