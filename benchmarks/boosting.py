"""Boosted trees of DCI, ours beside scikit-learn's: the same answers, and the time of each.

python benchmarks/boosting.py        writes boosting.json (three minutes; needs the data folder)
"""

from __future__ import annotations

import time

import numpy as np
import torch
from common import write
from sklearn.ensemble import GradientBoostingClassifier

from linearizer import data
from linearizer.boosting import boost
from linearizer.networks import load_network

FIT, TEST = 10_000, 5_000


def main() -> None:
    sprites = data.load("dsprites").train
    index = torch.randint(len(sprites), (FIT + TEST,), generator=torch.Generator().manual_seed(0))
    rows = {}
    for name in ("vae", "factor", "betah"):
        net = load_network(name)
        x = torch.cat([net(sprites.batch(i).x) for i in index.split(500)]).double().numpy()
        y = sprites.factors(index).numpy()
        for factor in (0, 1):
            args = x[:FIT], y[:FIT, factor]
            start = time.perf_counter()
            ours = boost(*args, x[FIT:])
            middle = time.perf_counter()
            theirs = GradientBoostingClassifier(random_state=0).fit(*args)
            end = time.perf_counter()
            there = theirs.predict(x[FIT:])
            again = GradientBoostingClassifier(random_state=2).fit(*args)
            rows[f"{name}, {sprites.names[factor]}"] = {
                "times_as_fast": (end - middle) / (middle - start),
                "test_samples_told_otherwise": int((ours.predicted != there).sum()),
                "largest_difference_of_an_importance": float(
                    np.abs(ours.importance - theirs.feature_importances_).max()
                ),
                "scikit_learn_with_another_random_state": {
                    "test_samples_told_otherwise": int((again.predict(x[FIT:]) != there).sum()),
                    "largest_difference_of_an_importance": float(
                        np.abs(again.feature_importances_ - theirs.feature_importances_).max()
                    ),
                },
            }
            print(name, sprites.names[factor], rows[f"{name}, {sprites.names[factor]}"])
    write("boosting", {"samples": [FIT, TEST], "rows": rows})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
