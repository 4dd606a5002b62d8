"""LPIPS: what any distance must be, and the published values where their files are."""

import numpy as np
import pytest
import torch

from laws import close
from linearizer.metrics.perceptual import CHANNELS, LPIPS, load_lpips, shapes

BACKBONES = ["alex", "squeeze"]


def weights(backbone):
    """Weights that keep the size of what passes through, as trained ones roughly do."""
    features = {
        k: torch.randn(s) * (2 / max(1, np.prod(s[1:]))) ** 0.5
        if len(s) > 1
        else 0.1 * torch.randn(s)
        for k, s in shapes(backbone).items()
    }
    return features, [torch.rand(c) for c in CHANNELS[backbone]]


def made(backbone):
    return LPIPS(backbone, *weights(backbone))


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize(
    "shape", [(2, 1, 8, 8), (2, 3, 32, 32), (2, 3, 20, 70), (2, 1, 64, 65), (1, 1, 1, 1)]
)
def test_a_distance_of_each_pair_of_any_size(backbone, shape):
    lpips, (x, y) = made(backbone), torch.rand(2, *shape)
    d = lpips(x, y)
    assert d.shape == shape[:1] and d.dtype == torch.float64 and (d > 0).all()
    assert torch.equal(lpips(x, x), torch.zeros(shape[0]))
    assert torch.equal(lpips(y, x), d)
    close(lpips(x[:1], y[:1]), d[:1], 1e-10)


def test_no_pairs_give_no_distances():
    assert made("squeeze")(*torch.rand(2, 0, 1, 32, 32)).shape == (0,)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_it_is_the_formula(backbone):
    """Computed here again from the features, with sums in place of means and normalize."""
    lpips, (x, y) = made(backbone), torch.rand(2, 2, 3, 64, 64)
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    a, b = (x - mean) / deviation, (y - mean) / deviation
    total = torch.zeros(2)
    heads = iter(lpips.heads)
    for i, layer in enumerate(lpips.features):
        a, b = layer(a), layer(b)
        if i in lpips.taps:
            p, q = a / a.square().sum(1, True).sqrt(), b / b.square().sum(1, True).sqrt()
            each = ((p - q) ** 2).permute(0, 2, 3, 1) @ next(heads)
            total += each.sum((1, 2)) / each[0].numel()
    close(lpips(x, y), total, 1e-10)


def test_small_and_grey_images_are_enlarged_and_repeated():
    lpips, (x, y) = made("alex"), torch.rand(2, 2, 1, 8, 16)

    def large(v):
        v = torch.nn.functional.interpolate(v, (64, 128), mode="bilinear")
        return v.repeat(1, 3, 1, 1)

    close(lpips(x, y), lpips(large(x), large(y)), 1e-12)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_gradients_pass_to_the_images_and_not_to_the_weights(backbone):
    lpips = made(backbone)
    x, y = torch.rand(2, 1, 1, 8, 8).unbind()
    x.requires_grad_()
    assert not any(p.requires_grad for p in lpips.parameters())
    lpips(x, y).sum().backward()
    assert x.grad.isfinite().all() and x.grad.norm() > 0
    assert all(p.grad is None for p in lpips.parameters())
    v, h = torch.randn_like(x), 1e-6
    slope = (lpips(x + h * v, y) - lpips(x - h * v, y)) / (2 * h)
    close(slope, (x.grad * v).sum()[None], 1e-4)


def test_gradients_are_finite_where_all_channels_are_zero():
    features, heads = weights("alex")
    features["features.0.bias"] = torch.full((64,), -1e6)
    x = torch.rand(1, 1, 8, 8, requires_grad=True)
    LPIPS("alex", features, heads)(x, torch.rand(1, 1, 8, 8)).sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_it_moves_between_precisions():
    lpips, (x, y) = made("squeeze"), torch.rand(2, 2, 3, 32, 32)
    exact = lpips(x, y)
    lpips.float()
    assert lpips(x, y).dtype == lpips(x.float(), y.float()).dtype == torch.float32
    close(lpips(x, y).double(), exact, 1e-5)
    assert lpips.double()(x, y).dtype == torch.float64


def test_the_weights_are_its_own_and_nothing_is_drawn():
    features, heads = weights("squeeze")
    before = torch.random.get_rng_state()
    lpips = LPIPS("squeeze", features, heads)
    assert torch.equal(before, torch.random.get_rng_state())
    x, y = torch.rand(2, 1, 3, 32, 32)
    d = lpips(x, y)
    features["features.0.weight"].zero_()
    heads[0].zero_()
    assert torch.equal(lpips(x, y), d)
    twin = made("squeeze")
    twin.load_state_dict(lpips.state_dict())
    assert torch.equal(twin(x, y), d)


@pytest.mark.parametrize(
    "x, y, message",
    [
        (torch.rand(2, 3, 8, 8), torch.rand(1, 3, 8, 8), r"one shape.*\(2, 3, 8, 8\) and \(1"),
        (torch.rand(3, 8, 8), torch.rand(3, 8, 8), "1 or 3, H, W"),
        (torch.rand(1, 2, 8, 8), torch.rand(1, 2, 8, 8), "1 or 3, H, W"),
        (torch.rand(1, 1, 0, 8), torch.rand(1, 1, 0, 8), "1 or 3, H, W"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.rand(1, 3, 8, 8), "torch.uint8"),
    ],
)
def test_wrong_images_are_told(x, y, message):
    with pytest.raises(ValueError, match=message):
        made("squeeze")(x, y)


def test_wrong_weights_are_told():
    features, heads = weights("squeeze")
    with pytest.raises(ValueError, match="alex, squeeze, got 'vgg'"):
        LPIPS("vgg", features, heads)
    with pytest.raises(ValueError, match="features of alex.*features.3.weight is absent"):
        LPIPS("alex", features, heads)
    with pytest.raises(ValueError, match="heads of 64, 128.*got shapes"):
        LPIPS("squeeze", features, heads[:-1])
    with pytest.raises(ValueError, match="heads ≥ 0"):
        LPIPS("squeeze", features, [-w for w in heads])
    with pytest.raises(ValueError, match="more is unknown"):
        LPIPS("squeeze", {**features, "more": heads[0]}, heads)
    bad = {**features, "features.0.bias": torch.zeros(3)}
    with pytest.raises(ValueError, match=r"features.0.bias of shape \(64,\), got \(3,\)"):
        LPIPS("squeeze", bad, heads)


def test_weights_come_from_files(tmp_path):
    features, heads = weights("squeeze")
    torch.save(features, tmp_path / "squeezenet1_1_features.pth")
    named = {f"lin{i}.model.1.weight": w[None, :, None, None] for i, w in enumerate(heads)}
    torch.save(named, tmp_path / "lpips_v0.1_squeeze.pth")
    x, y = torch.rand(2, 2, 1, 32, 32)
    read = load_lpips("squeeze", tmp_path)
    assert torch.equal(read(x, y), LPIPS("squeeze", features, heads)(x, y))
    assert torch.equal(load_lpips("squeeze", str(tmp_path))(x, y), read(x, y))


def test_absent_and_wrong_files_are_told_with_where_and_what_to_do(tmp_path):
    def told(*parts):
        with pytest.raises(ValueError) as caught:
            load_lpips("squeeze", tmp_path / "lpips")
        message = str(caught.value)
        assert "\n" not in message and "LINEARIZER_DATA" in message
        for part in (str(tmp_path / "lpips"), *parts):
            assert part in message, message

    told("squeezenet1_1_features.pth", "its folder is not there either", "pass the folder")
    (tmp_path / "lpips").mkdir()
    told("squeezenet1_1_features.pth", "its folder is there", "pass the folder")
    file = tmp_path / "lpips" / "squeezenet1_1_features.pth"
    file.write_bytes(b"no weights")
    told("cannot be read")
    file.write_bytes(b"")
    told("cannot be read")
    torch.save([torch.zeros(3)], file)
    told("found list")
    torch.save({"features.0.weight": torch.zeros(3)}, file)
    told("features.0.bias is absent (and ")
    torch.save(weights("squeeze")[0], file)
    told("lpips_v0.1_squeeze.pth", "absent")
    other = file.with_name("lpips_v0.1_squeeze.pth")
    torch.save({f"lin{i}.model.1.weight": torch.zeros(1, 64, 1, 1) for i in range(7)}, other)
    told("lpips_v0.1_squeeze.pth", "lin1.model.1.weight of shape (1, 128, 1, 1)")
    with pytest.raises(ValueError, match="got 'vgg'"):
        load_lpips("vgg", tmp_path)


def example(folder, name):
    from PIL import Image

    with Image.open(folder / "example_images" / f"ex_{name}.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    return torch.tensor(pixels).permute(2, 0, 1)[None] / 255


@pytest.mark.parametrize(
    "backbone, far, near",
    [
        ("alex", 0.7219, 0.1376),  # as published with the example images
        ("squeeze", 0.7110, 0.1479),  # as found here, against changes
    ],
)
def test_the_example_images_have_their_distances(data_root, backbone, far, near):
    folder = data_root / "lpips"
    lpips = load_lpips(backbone, folder)
    reference, p0, p1 = (example(folder, name) for name in ("ref", "p0", "p1"))
    assert lpips(reference, p0) > lpips(reference, p1)
    for precise in (lpips, lpips.double()):
        found = precise(torch.cat([reference, reference]), torch.cat([p0, p1]))
        assert found.tolist() == pytest.approx([far, near], abs=5e-5)
