"""Boosted trees of DCI, ours beside scikit-learn's: the same answers, and the time of each.

python -m paper.boosting writes boosting.json (three minutes; needs the data folder)
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import GradientBoostingClassifier

from linearizer import data
from linearizer.data.networks import load_network
from linearizer.metrics.boosting import boost

from .experiment import FOLDER, machine, write_json

FIT, TEST = 10_000, 5_000


def compare(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Our trees and scikit-learn's on the first samples, judged on the others."""
    start = time.perf_counter()
    ours = boost(x[:FIT], y[:FIT], x[FIT:])
    between = time.perf_counter()
    theirs = GradientBoostingClassifier(random_state=0).fit(x[:FIT], y[:FIT])
    end = time.perf_counter()
    again = GradientBoostingClassifier(random_state=2).fit(x[:FIT], y[:FIT])

    def differ(predicted: np.ndarray, importance: np.ndarray) -> dict[str, Any]:
        gap = np.abs(importance - theirs.feature_importances_).max()
        return {
            "test_samples_told_otherwise": int((predicted != theirs.predict(x[FIT:])).sum()),
            "largest_difference_of_an_importance": float(gap),
        }

    return {
        "times_as_fast": (end - between) / (between - start),
        **differ(ours.predicted, ours.importance),
        "scikit_learn_with_another_random_state": differ(
            again.predict(x[FIT:]), again.feature_importances_
        ),
    }


def main() -> None:
    torch.set_num_threads(1)
    sprites = data.load("dsprites").train
    index = torch.randint(len(sprites), (FIT + TEST,), generator=torch.Generator().manual_seed(0))
    rows = {}
    for name in ("vae", "factor", "betah"):
        net = load_network(name)
        x = torch.cat([net(sprites.batch(i).x) for i in index.split(500)]).double().numpy()
        y = sprites.factors(index).numpy()
        for factor in (0, 1):
            row = rows[f"{name}, {sprites.names[factor]}"] = compare(x, y[:, factor])
            print(name, sprites.names[factor], row)
    result = {"machine": machine(), "samples": [FIT, TEST], "rows": rows}
    write_json(FOLDER / "boosting.json", result)


if __name__ == "__main__":
    main()
