"""Train the digit classifier whose features our FID on digits is measured in.

    python benchmarks/mnist_classifier.py

Writes src/linearizer/features/mnist-classifier.safetensors and benchmarks/mnist_classifier.json.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import write

from linearizer import data
from linearizer.checkpoint import tensors_of, write_tensors
from linearizer.metrics import WEIGHTS, DigitClassifier, digit_features, frechet
from linearizer.training import Training, fit


def loss(model, batch, draw):
    """Cross-entropy of digits shifted by up to two pixels."""
    shift = (5 * draw.uniform(batch.x[:1, 0, 0, :2])).long() - 2
    x = batch.x.roll((int(shift[0, 0]), int(shift[0, 1])), (2, 3))
    return {"cross-entropy": F.cross_entropy(model(x), batch.y, label_smoothing=0.05)}


def measure(model, batch, draw):
    return {"accuracy": (model(batch.x).argmax(1) == batch.y).float()}


def main() -> None:
    torch.manual_seed(0)
    digits = data.load("mnist", size=32)
    model = DigitClassifier()
    config = Training(steps=1500, batch=128, rate=2e-3, ema=0.99, weight_decay=0.01,
                      validate_every=500)  # fmt: skip
    result = fit(model, loss, digits.train, config, validation=digits.val, measure=measure)
    write_tensors(WEIGHTS, tensors_of(model), {})
    x, y = digits.test.batch(torch.arange(10_000))
    other = digits.train.batch(torch.arange(10_000)).x
    with torch.no_grad():
        scores = torch.cat([model(part) for part in x.split(500)])
    write(
        "mnist_classifier",
        {
            "test_accuracy": float((scores.argmax(1) == y).float().mean()),
            "parameters": sum(p.numel() for p in model.parameters()),
            "training_seconds": round(result.seconds),
            "fid_of_10000_training_digits_to_the_test_digits": frechet(
                digit_features(other), digit_features(x)
            ),
        },
    )


if __name__ == "__main__":
    main()
