"""Scores of codes whose answer is known, and each score against its definition written out."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from linearizer.metrics import boosting, disentanglement
from linearizer.metrics.disentanglement import (
    Scores,
    concentration,
    dci,
    factor_vae,
    sap,
    scores,
)

SIZES = (3, 4, 5)
FEW = {"train": 600, "test": 400}
QUICK = {**FEW, "workers": 1}
#: Orthogonal, and every code a mixture of all three factors.
TURN = torch.eye(3, dtype=torch.float64) - 2 / 3


def grid(sizes=SIZES):
    """The factors themselves, standardised: a perfect code."""
    factors = torch.cartesian_prod(*(torch.arange(float(s)) for s in sizes))
    return (factors - factors.mean(0)) / factors.std(0)


# -- codes whose scores are known --------------------------------------------------------------


def test_a_perfect_code():
    found = scores(grid(), SIZES, votes=(500, 500), **QUICK)
    assert found.factor_vae == 1 and found.informativeness == 1
    assert min(found.disentanglement, found.completeness) > 1 - 1e-6
    assert found.sap > 0.35
    # A permutation and a change of sign or scale are no entanglement.
    other = grid()[:, [2, 0, 1]] * torch.tensor([-1.0, 30.0, 0.2])
    found = scores(other, SIZES, votes=(500, 500), **QUICK)
    assert found.factor_vae == 1 and found.informativeness == 1
    assert min(found.disentanglement, found.completeness) > 1 - 1e-6


def test_the_importance_has_codes_as_rows_and_factors_as_columns():
    two_and_noise = torch.cat([grid()[:, [2, 0, 1]], torch.randn(60, 1)], 1)
    R = dci(two_and_noise, SIZES, **QUICK).importance
    assert R.shape == (4, 3) and torch.allclose(R.sum(0), torch.ones(3))
    assert R.argmax(0).tolist() == [1, 2, 0] and R[3].max() < 0.01


def test_random_codes_score_as_chance():
    sizes = (3,) * 8
    z = torch.randn(3**8, 4)
    assert factor_vae(z, sizes, votes=(2000, 2000)) == pytest.approx(1 / 8, abs=0.05)
    found = dci(z, sizes, train=300, test=600, workers=1)
    assert max(found.disentanglement, found.completeness) < 0.05
    assert found.informativeness == pytest.approx(1 / 3, abs=0.06)
    assert sap(z, sizes, **FEW) < 0.04


def test_a_turned_code_is_entangled_but_informative():
    z = grid() @ TURN
    assert factor_vae(z, SIZES, votes=(500, 500)) < 0.7
    assert sap(z, SIZES, **FEW) < 0.1
    found = dci(z, SIZES, **QUICK)
    assert max(found.disentanglement, found.completeness) < 0.3
    assert found.informativeness > 0.95


def test_a_factor_in_two_codes_is_incomplete_but_disentangled():
    split = torch.cat([grid()[:, :1], grid()], 1)
    found = dci(split, SIZES, **QUICK)
    assert found.disentanglement > 0.999 and found.informativeness == 1
    # Equal shares of two of four codes have entropy 1/2.
    assert found.completeness == pytest.approx((0.5 + 1 + 1) / 3, abs=0.03)
    assert factor_vae(split, SIZES, votes=(500, 500)) == 1
    # The same samples, and nothing is left of the gap of the first factor.
    assert sap(split, SIZES, **FEW) < sap(grid(), SIZES, **FEW) - 0.1


def test_constant_codes_have_the_least_scores():
    found = scores(torch.ones(60, 3), SIZES, votes=(10, 10), **QUICK)
    assert found[:4] == (0, 0, 0, 0)
    assert found.informativeness == pytest.approx((1 / 3 + 1 / 4 + 1 / 5) / 3, abs=0.05)


# -- FactorVAE ---------------------------------------------------------------------------------


def test_codes_that_hardly_vary_are_left_out():
    z = grid()
    z[:, 0] *= 0.04
    assert factor_vae(z, SIZES, votes=(500, 500), smallest=0.01) == 1
    # Of the first factor's votes half or more are lost; the others keep theirs.
    assert 0.4 < factor_vae(z, SIZES, votes=(500, 500)) < 0.9
    assert factor_vae(0.04 * z, SIZES, votes=(500, 500)) == 0
    turned = grid() @ TURN
    expected = factor_vae(turned, SIZES, votes=(500, 500), smallest=0)
    for value in (7.0, 0.1):  # the variance of the second is not 0, by rounding
        z = torch.cat([torch.full((60, 1), value), turned], 1)
        assert factor_vae(z, SIZES, votes=(500, 500), smallest=0) == expected


def test_variances_divide_by_one_less():
    """Two samples 0.08 apart deviate by 0.057, and by 0.04 if divided by two."""
    z = 0.08 * torch.cartesian_prod(torch.arange(2.0), torch.arange(2.0))
    found = [factor_vae(z, (2, 2), seed, votes=(20, 20), samples=2) for seed in range(10)]
    assert max(found) > 0 and min(found) == 0  # 0 where the two are the same


def test_factor_vae_is_its_definition():
    """Against loops over votes; scales differ, so that the global variance matters."""
    z = (grid() @ TURN + 0.5 * grid()) * torch.tensor([1.0, 4.0, 0.5])
    z = torch.cat([z, 2 * torch.randn(60, 1)], 1).numpy()
    rng = np.random.default_rng(5)

    def rows(factors):
        return z[[(a * 4 + b) * 5 + c for a, b, c in factors]]

    def sample(n):
        return np.stack([rng.integers(0, s, n) for s in SIZES], 1)

    variance = np.var(rows(sample(2000)), axis=0, ddof=1)

    def vote():
        factor, factors = rng.integers(3), sample(10)
        factors[:, factor] = rng.integers(SIZES[factor])
        return np.argmin(np.var(rows(factors), axis=0, ddof=1) / variance), factor

    counts = np.zeros((4, 3))
    for _ in range(2000):
        counts[vote()] += 1
    table = counts.argmax(1)
    expected = np.mean([table[code] == factor for code, factor in (vote() for _ in range(3000))])
    found = factor_vae(torch.from_numpy(z), SIZES, votes=(10_000, 10_000), batch=10)
    assert 0.4 < expected < 0.9
    assert found == pytest.approx(expected, abs=0.04)


# -- SAP ---------------------------------------------------------------------------------------


def test_the_gap_of_a_perfect_code_of_two_values_is_a_half():
    assert sap(grid((2, 2, 2)), (2, 2, 2), train=500, test=4000) == pytest.approx(0.5, abs=0.03)


def test_sap_is_its_definition():
    """Against machines that see every combination equally often."""
    from sklearn.svm import LinearSVC

    sizes = (3, 4, 100)
    shape, scale, _ = grid(sizes).T
    z = torch.stack([shape, scale + 0.5 * shape, scale - shape], 1) + 0.7 * torch.randn(1200, 3)
    expected = []
    for factor in range(2):
        y = np.array([i[factor] for i in np.ndindex(*sizes)])
        right = []
        for code in z.T.numpy():
            machine = LinearSVC(C=0.01, class_weight="balanced")
            machine.fit(np.tile(code, 5)[:, None], np.tile(y, 5))
            right.append(np.mean(machine.predict(code[:, None]) == y))
        second, best = sorted(right)[-2:]
        expected.append(best - second)
    assert min(expected) > 0.05
    # Nothing tells the third factor.
    found = sap(z, sizes, train=6000, test=20_000)
    assert found == pytest.approx(sum(expected) / 3, abs=0.015)


def test_machines_that_stop_early_are_not_reported(monkeypatch):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    fit = LinearSVC.fit

    def stops_early(self, x, y):
        warnings.warn("stopped", ConvergenceWarning, stacklevel=1)
        return fit(self, x, y)

    monkeypatch.setattr(LinearSVC, "fit", stops_early)
    assert sap(grid(), SIZES, **FEW) > 0.35
    with pytest.warns(ConvergenceWarning):  # here they are
        LinearSVC().fit(np.eye(2), [0, 1])


# -- DCI ---------------------------------------------------------------------------------------


def test_disentanglement_and_completeness_by_hand():
    R = torch.tensor([[0.5, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]])
    half = math.log(2) / math.log(3)
    third = -(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3) / math.log(3)
    D = 0.5 / 3 * 1 + 1 / 3 * (1 - half) + 1.5 / 3 * (1 - third)
    assert concentration(R) == pytest.approx(D)
    # Entropy of two equal shares is 1/2 in base 4: columns have 1/2, 1/2 and 1.
    assert concentration(R.T) == pytest.approx(2 / 3)
    assert concentration(7 * R) == pytest.approx(D)
    assert concentration(torch.eye(3)) == 1
    assert concentration(torch.ones(3, 5)) == pytest.approx(0)
    assert concentration(torch.zeros(2, 2)) == 0


def test_the_factors_may_be_shared_out_to_processes():
    z = grid() @ TURN
    one, two = (dci(z, SIZES, train=100, test=100, workers=n) for n in (1, 2))
    assert one[:3] == two[:3] and torch.equal(one.importance, two.importance)


# -- protocol and randomness -------------------------------------------------------------------


def test_the_protocol_is_the_stated_one(monkeypatch):
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.svm import LinearSVC

    machines, trees = [], []
    calls = {"_count_votes": [], "_draw_samples": []}

    def fit(self, x, y, usual=LinearSVC.fit):
        machines.append((self.get_params(), x, y))
        return usual(self, x, y)

    def boost(x, y, x_test, usual=disentanglement.boost, **settings):
        trees.append((settings, x, y))
        return usual(x, y, x_test, stages=1)

    def spy_on_call(name, function):
        def spy(*arguments):
            calls[name].append(arguments)
            return function(*arguments)

        monkeypatch.setattr(disentanglement, name, spy)

    monkeypatch.setattr(LinearSVC, "fit", fit)
    monkeypatch.setattr(disentanglement, "boost", boost)
    for name in calls:
        spy_on_call(name, getattr(disentanglement, name))
    scores(grid(), SIZES, 7, workers=1)
    assert [c[3:5] for c in calls["_count_votes"]] == [(10_000, 64), (5_000, 64)]
    variance = torch.from_numpy(calls["_count_votes"][0][2])
    assert torch.allclose(variance, torch.full((3,), 59 / 60), atol=0.04)  # many samples
    assert [c[4:6] for c in calls["_draw_samples"]] == [(10_000, 5_000), (10_000, 5_000)]
    for parameters, x, y in machines:
        assert (parameters["C"], parameters["class_weight"]) == (0.01, "balanced")
        assert x.shape == (10_000, 1) and y.shape == (10_000,)
    assert len(machines) == 9
    usual = GradientBoostingClassifier().get_params()
    defaults = boosting.boost.__kwdefaults__
    for ours, theirs in {
        "stages": "n_estimators",
        "rate": "learning_rate",
        "depth": "max_depth",
    }.items():
        assert defaults[ours] == usual[theirs]
    for settings, x, y in trees:
        assert settings == {"seed": 7}
        assert x.shape == (10_000, 3) and y.shape == (10_000,)
    assert [len(set(y)) for _, _, y in trees] == [5, 4, 3]  # the longest first
    assert not np.array_equal(machines[0][1][:, 0], trees[0][1][:, 0])  # samples of its own


def test_a_seed_says_everything():
    z = torch.cat([grid() @ TURN, torch.randn(60, 1)], 1)
    few = {"votes": (200, 200), "train": 100, "test": 100, "workers": 1}
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    found = scores(z, SIZES, 3, **few)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    torch.manual_seed(5)
    # Each alone, in another order, is what it was beside the others.
    D, C, I, _ = dci(z, SIZES, 3, train=100, test=100, workers=1)
    gap = sap(z, SIZES, 3, train=100, test=100)
    assert found == Scores(factor_vae(z, SIZES, 3, votes=(200, 200)), gap, D, C, I)
    other = scores(z, SIZES, 4, **few)
    assert all(a != b for a, b in zip(found, other, strict=True))


def test_codes_of_any_float_dtype_are_taken():
    z = grid().requires_grad_()
    expected = factor_vae(z, SIZES, votes=(100, 100))
    assert factor_vae(z.bfloat16(), SIZES, votes=(100, 100)) == expected == 1


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [factor_vae, sap, dci, scores])
def test_wrong_codes_are_named(score):
    where = "factor_vae" if score is scores else score.__name__
    bad = grid()
    bad[:2, 1] = torch.tensor([math.nan, math.inf])
    for codes, sizes, words in (
        (grid()[:59], SIZES, r"expected 60 codes, .* of sizes \(3, 4, 5\), got 59. Encode all"),
        (grid()[:, 0], SIZES, r"expected codes \(N, k\) with k ≥ 2, got shape \(60,\). Flatten"),
        (grid()[:, :1], SIZES, r"k ≥ 2, got shape \(60, 1\)"),
        (bad, SIZES, "expected finite codes, got NaN or infinity in 2 of 60 rows. Look at"),
        (grid(), (60,), r"expected two factors or more .*, got sizes \(60,\). Leave out"),
        (grid(), (1, 60), r"of two values or more each, got sizes \(1, 60\)"),
    ):
        with pytest.raises(ValueError, match=f"^{where}: .*{words}"):
            score(codes, sizes)
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=f"{where}: expected a seed from 0 .* got {seed}"):
            score(grid(), SIZES, seed)


def test_wrong_counts_are_named():
    z = grid()
    for call, words in (
        (lambda: factor_vae(z, SIZES, votes=(0, 5)), "factor_vae: expected votes to learn ≥ 1"),
        (lambda: factor_vae(z, SIZES, votes=(5, 0)), "factor_vae: expected votes to test ≥ 1"),
        (lambda: factor_vae(z, SIZES, batch=1), "factor_vae: expected batch ≥ 2, got 1"),
        (lambda: factor_vae(z, SIZES, samples=1), "factor_vae: expected samples ≥ 2, got 1"),
        (lambda: sap(z, SIZES, train=1), "sap: expected train ≥ 2, got 1"),
        (lambda: sap(z, SIZES, test=0), "sap: expected test ≥ 1, got 0"),
        (lambda: dci(z, SIZES, test=0), "dci: expected test ≥ 1, got 0"),
        (lambda: dci(z, SIZES, workers=0), "dci: expected workers ≥ 1, got 0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    skewed = grid((2, 2))
    with pytest.raises(ValueError, match="one value of factor . in 2 samples. Draw more"):
        for seed in range(20):
            sap(skewed, (2, 2), seed, train=2)


def test_wrong_importances_are_named():
    with pytest.raises(ValueError, match=r"n ≥ 2, got shape \(3, 1\)"):
        concentration(torch.ones(3, 1))
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="got negative ones or NaN"):
            concentration(torch.tensor([[1.0, wrong]]))


def test_importing_it_does_not_import_scikit_learn():
    code = "import sys, linearizer.metrics.disentanglement as d; print('sklearn' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
