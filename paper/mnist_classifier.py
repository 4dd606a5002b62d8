"""Train the digit classifier whose features our FID on digits is measured in.

    python -m paper.mnist_classifier

Writes metrics/features/mnist-classifier.safetensors in the package, and
benchmarks/mnist_classifier.json.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linearizer import data
from linearizer.metrics.images import WEIGHTS, DigitClassifier, digit_features, frechet
from linearizer.training.checkpoint import tensors_of, write_tensors
from linearizer.training.draws import Draw
from linearizer.training.loop import Training, fit

from .experiment import FOLDER, machine, write_json


def loss(model: nn.Module, batch: data.Batch, draw: Draw) -> dict[str, Tensor]:
    """Cross-entropy of digits shifted by up to two pixels."""
    shift = (5 * draw.uniform(batch.x[:1, 0, 0, :2])).long() - 2
    x = batch.x.roll((int(shift[0, 0]), int(shift[0, 1])), (2, 3))
    assert batch.y is not None
    return {"cross-entropy": F.cross_entropy(model(x), batch.y, label_smoothing=0.05)}


def measure(model: nn.Module, batch: data.Batch, draw: Draw) -> dict[str, Tensor]:
    """Return whether each digit is told."""
    return {"accuracy": (model(batch.x).argmax(1) == batch.y).float()}


def main() -> None:
    torch.manual_seed(0)
    digits = data.load("mnist", size=32)
    model = DigitClassifier()
    config = Training(
        steps=1500, batch=128, rate=2e-3, ema=0.99, weight_decay=0.01, validate_every=500
    )
    result = fit(model, loss, digits.train, config, validation=digits.val, measure=measure)
    write_tensors(WEIGHTS, tensors_of(model), {})
    x, y = digits.test.batch(torch.arange(10_000))
    other = digits.train.batch(torch.arange(10_000)).x
    with torch.no_grad():
        scores = torch.cat([model(part) for part in x.split(500)])
    row = {
        "machine": machine(),
        "test_accuracy": float((scores.argmax(1) == y).float().mean()),
        "parameters": sum(p.numel() for p in model.parameters()),
        "training_seconds": round(result.seconds),
        "fid_of_10000_training_digits_to_the_test_digits": frechet(
            digit_features(other), digit_features(x)
        ),
    }
    write_json(FOLDER / "mnist_classifier.json", row)


if __name__ == "__main__":
    main()
