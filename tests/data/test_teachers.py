"""Style networks: the layers by their formula, files of every kind, and the published pictures."""

import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from laws import close
from linearizer.data.teachers import StyleNet, load_style, load_styles


def written_out(weights, x):
    """The network from its description, layer by layer, on 0 … 255."""

    def conv(name, h, stride=1):
        w, b = (weights[f"{name}.conv2d.{part}"] for part in ("weight", "bias"))
        border = torch.nn.ReflectionPad2d(w.shape[-1] // 2)
        return F.conv2d(border(h), w, b, stride)

    def norm(name, h):
        std, mean = torch.std_mean(h, (2, 3), correction=0, keepdim=True)
        w, b = (weights[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
        return (h - mean) / (std**2 + 1e-5).sqrt() * w + b

    h = conv("conv1", 255 * x)
    h = conv("conv2", norm("in1", h).relu(), 2)
    h = conv("conv3", norm("in2", h).relu(), 2)
    h = norm("in3", h).relu()
    for i in range(1, 6):
        inner = norm(f"res{i}.in1", conv(f"res{i}.conv1", h)).relu()
        h = h + norm(f"res{i}.in2", conv(f"res{i}.conv2", inner))
    for i, j in ((1, 4), (2, 5)):
        h = h.repeat_interleave(2, 2).repeat_interleave(2, 3)
        h = norm(f"in{j}", conv(f"deconv{i}", h)).relu()
    return conv("deconv3", h) / 255


def made(width=4):
    """A network whose outputs fill [0, 1] and leave it here and there."""
    net = StyleNet(width)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
        net.deconv3.conv2d.weight.mul_(100)
        net.deconv3.conv2d.bias.fill_(127)
    return net


@pytest.mark.parametrize("size", [(16, 24), (17, 30), (5, 5), (64, 7)])
def test_it_is_the_network_of_the_paper_at_any_size(size):
    net, x = made(), torch.rand(2, 3, *size)
    y = net(x)
    expected = written_out(net.state_dict(), x)[..., : size[0], : size[1]]
    assert y.shape == x.shape and 0 < ((y == 0) | (y == 1)).double().mean() < 0.5
    close(y, expected.clamp(0, 1), 1e-9)
    close(net(x[1:]), y[1:], 1e-9)


@pytest.mark.parametrize("size", [(1, 1), (4, 50), (50, 2)])
def test_tiny_images_are_those_with_a_repeated_border(size):
    net, x = made(), torch.rand(1, 3, *size)
    right, below = (max(0, 5 - n) for n in reversed(size))
    large = F.pad(x, (0, right, 0, below), mode="replicate")
    assert torch.equal(net(x), net(large)[..., : size[0], : size[1]])


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(3, 8, 8),
        torch.rand(1, 1, 8, 8),
        torch.rand(1, 3, 0, 8),
        torch.ones(1, 3, 8, 8).int(),
    ],
)
def test_wrong_images_are_told(x):
    with pytest.raises(ValueError, match=r"expected images \(n, 3, H, W\) as floats in \[0, 1\]"):
        made()(x)
    with pytest.raises(ValueError, match="width of 1 or more, got 0"):
        StyleNet(0)


@pytest.mark.parametrize("width", [4, 6])
def test_weights_come_from_files_of_every_kind(tmp_path, width):
    net = made(width).float()
    x = torch.rand(1, 3, 20, 20)
    weights = dict(net.state_dict())
    torch.save(weights, tmp_path / "plain.pth")
    save_file(weights, tmp_path / "safe.safetensors")
    for name in ("in1", "res3.in2"):  # as networks of old stored them
        weights[f"{name}.running_mean"] = weights[f"{name}.running_var"] = torch.zeros(1)
    torch.save(weights, tmp_path / "old.model")
    torch.save({k: v.half() for k, v in weights.items()}, tmp_path / "half.pth")
    (tmp_path / ".hidden.pth").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "more").mkdir()
    styles = load_styles(str(tmp_path))
    assert list(styles) == ["half", "old", "plain", "safe"]
    for name, style in styles.items():
        assert style.width == width and not style.training
        assert not any(p.requires_grad for p in style.parameters())
        y = style(x)
        assert y.dtype == torch.float32
        close(y, net(x), 2e-2 if name == "half" else 0.0)


class Code:
    def __reduce__(self):
        return os.mkdir, ("it-ran",)


def test_wrong_files_are_told_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "style.pth"

    def told(*parts, path=file):
        with pytest.raises(ValueError) as caught:
            load_style(path)
        message = str(caught.value)
        assert "\n" not in message and message.startswith(f"{path}: expected")
        for part in parts:
            assert part in message, message

    told("there is no such file. Name a file")
    told("it is a folder", path=tmp_path)
    for content in (b"no weights", b""):
        file.write_bytes(content)
        told("cannot be read", "Copy it here again")
        file.with_suffix(".safetensors").write_bytes(content)
        told("cannot be read", path=file.with_suffix(".safetensors"))
    torch.save({"conv1.conv2d.weight": Code()}, file)
    told("cannot be read")
    assert not (tmp_path / "it-ran").exists()
    torch.save([torch.zeros(3)], file)
    told("found list", "state_dict()")
    torch.save({}, file)
    told("conv1.conv2d.weight is absent (and 61 more)", "pytorch/examples")
    weights = made(2).state_dict()
    torch.save({k: v for k, v in weights.items() if "res2" not in k}, file)
    told("62 tensors", "res2.conv1.conv2d.weight is absent (and 7 more)")
    torch.save({**weights, "extra": torch.zeros(1)}, file)
    told("but extra is unknown.")
    torch.save({**weights, "in4.bias": torch.zeros(3)}, file)
    told("in4.bias of shape (4,)", "width 2, got (3,)")
    torch.save({**weights, "in4.bias": 1.0}, file)
    told("got float")


def test_wrong_folders_are_told(tmp_path):
    for folder, said in ((tmp_path / "none", "is not there"), (tmp_path, r"\.pth, .*found none")):
        with pytest.raises(ValueError, match=said):
            load_styles(folder)
    torch.save(made().state_dict(), tmp_path / "a.pth")
    torch.save(made().state_dict(), tmp_path / "a.model")
    with pytest.raises(ValueError, match="one file for each style, but a has several"):
        load_styles(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        load_styles(tmp_path / "a.pth")


# -- the published networks ----------------------------------------------------------------

#: Mean of each colour on a piece of amber.jpg, of networks that passed the test of whole pictures.
FOUND = {
    "candy": (0.6655, 0.5164, 0.4252),
    "mosaic": (0.6801, 0.6325, 0.6000),
    "pointilism": (0.3465, 0.3460, 0.3179),
    "rain_princess": (0.4542, 0.3663, 0.2768),
    "udnie": (0.3863, 0.3957, 0.3792),
}


def picture(path):
    from PIL import Image

    with Image.open(path) as image:
        return torch.tensor(np.asarray(image.convert("RGB"))).permute(2, 0, 1)[None] / 255


@pytest.fixture(scope="module")
def folder(data_root):
    if not (data_root / "style_models").is_dir():
        pytest.skip(f"there is no folder style_models in {data_root}")
    return data_root / "style_models"


def test_the_published_networks_give_what_they_gave(folder):
    piece = picture(folder / "reference" / "amber.jpg")[..., 500:596, 400:496]
    styles = load_styles(folder)
    assert list(styles) == list(FOUND)
    for name, net in styles.items():
        assert net(piece).mean((0, 2, 3)).tolist() == pytest.approx(FOUND[name], abs=1e-3)
    for name, net in load_styles(folder / "nc16").items():
        full = FOUND[name.removesuffix("_nc16")]
        assert net.width == 16
        assert net(piece).mean((0, 2, 3)).tolist() == pytest.approx(full, abs=0.02)


@pytest.mark.skipif("LINEARIZER_SLOW" not in os.environ, reason="a minute each: LINEARIZER_SLOW=1")
@pytest.mark.parametrize("name", [n for n in FOUND if n != "pointilism"])
def test_whole_pictures_are_the_published_ones(folder, name):
    reference = folder / "reference"
    y = load_style(folder / f"{name}.pth")(picture(reference / "amber.jpg"))
    published = picture(reference / f"amber-{name.replace('_', '-')}.jpg").to(y)
    assert torch.corrcoef(torch.stack([y.flatten(), published.flatten()]))[0, 1] >= 0.98
