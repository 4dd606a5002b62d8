"""PSNR and FID against closed forms, and the shipped classifier against real digits."""

import pytest
import torch

from linearizer import data
from linearizer.metrics.images import digit_classifier, digit_features, frechet, psnr


def test_psnr_is_per_image():
    x = torch.zeros(3, 1, 4, 4)
    y = x + torch.tensor([0.1, 0.01, 0.0])[:, None, None, None]
    found = psnr(x, y)
    assert torch.allclose(found[:2], torch.tensor([20.0, 40.0])) and found[2] > 300
    with pytest.raises(ValueError, match="equal shapes"):
        psnr(x, y[:2])


def test_frechet_of_two_gaussians_is_known():
    n = 200_000
    a = torch.randn(n, 2) * torch.tensor([1.0, 2.0])
    b = torch.randn(n, 2) * torch.tensor([3.0, 1.0]) + torch.tensor([1.0, 0.0])
    assert frechet(a, b) == pytest.approx(1 + (1 - 3) ** 2 + (2 - 1) ** 2, rel=0.02)
    turn = torch.linalg.qr(torch.randn(2, 2))[0]
    assert frechet(a @ turn, b @ turn) == pytest.approx(frechet(a, b))
    assert frechet(a, b) == pytest.approx(frechet(b, a))
    assert abs(frechet(a, a)) < 1e-9


def test_frechet_takes_features_that_never_vary():
    a = torch.cat([torch.randn(50, 2), torch.zeros(50, 1)], 1)
    assert abs(frechet(a, a)) < 1e-9
    with pytest.raises(ValueError, match="n ≥ 2 and equal k"):
        frechet(a, a[:, :2])


def test_features_say_what_they_take():
    with pytest.raises(ValueError, match=r"\(n, 1, 32, 32\), got \(2, 1, 28, 28\). Pad"):
        digit_features(torch.zeros(2, 1, 28, 28))
    assert digit_features(torch.rand(3, 1, 32, 32)).shape == (3, 64)


def test_the_shipped_classifier_knows_digits(data_root):
    x, y = data.load("mnist", data_root, size=32).test.batch(torch.arange(2000))
    right = digit_classifier()(x).argmax(1) == y
    assert float(right.double().mean()) > 0.985  # the first 2,000 are the harder ones
    features = digit_features(x)
    noisy = digit_features((x + 0.3 * torch.randn_like(x)).clamp(0, 1))
    assert frechet(features[:1000], features[1000:]) < 0.2 * frechet(noisy, features)
