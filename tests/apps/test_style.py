"""Styles as operators: blends, strength, undoing, new styles in closed form, and their uses."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import linearizer as lz
from linearizer.apps.style import model as style
from linearizer.apps.style import use
from linearizer.cli import app
from linearizer.data.images import Picture
from linearizer.data.photos import Photos
from linearizer.data.stylised import STYLISED, Pair, Stylised
from linearizer.data.teachers import StyleNet
from linearizer.families import StyleKernel
from linearizer.nets import ImageNorm
from linearizer.operators import MixingConvolution
from linearizer.runs.store import find, load_data, open_run
from linearizer.training.checkpoint import write_tensors
from linearizer.training.draws import Draw

NAMES = ("candy", "mosaic", "udnie")
MODELS = {
    "mixing": {"hidden": 6, "blocks": 1, "output_blocks": 1},
    "one squeeze, 4×4": {
        "hidden": 4, "blocks": 1, "output_blocks": 1, "squeezes": 1, "kernel": 4,
    },
    "paper": {"g": "glow", "blocks": 1, "output_blocks": 1, "mixing": False, "kernel": 4},
}  # fmt: skip


def photo(seed, height=40, width=56):
    """Something with edges, gradients and texture, (H, W, 3) bytes."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 20
    waves = [np.sin(a * x + b * y + c) for a, b, c in rng.normal(size=(3, 3))]
    noise = rng.normal(size=(height, width, 3)) * 0.1
    return ((np.stack(waves, -1) * 0.4 + 0.5 + noise).clip(0, 1) * 255).astype(np.uint8)


def photos(n=4, size=32):
    def picture(i):
        import io

        Image.fromarray(photo(i)).save(file := io.BytesIO(), "png")
        return Picture(f"{i}.png", file.getvalue)

    return Photos({f"{i}.png": picture(i) for i in range(n)}, size)


def dark(x):
    return 0.5 * x


def turned(x):
    return 1 - x.flip(1)


def source(crops=4):
    return Stylised(photos(), {"candy": dark, "mosaic": turned, "udnie": lambda x: x**2}, 32, crops)


def made(name="mixing"):
    """A model with weights that are nowhere zero, as after training."""
    model = style.Style(style.Config(shape=(3, 32, 32), names=NAMES, **MODELS[name]))
    data = source()
    pair = data.batch(torch.arange(len(data)))
    model.initialize(Pair(*(t.to(torch.get_default_dtype()) for t in pair[:2]), pair.style))
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn_like(p)
    return model.eval()


def images(n=2, height=32, width=32):
    return torch.stack(
        [torch.from_numpy(photo(9 + i, height, width)).permute(2, 0, 1) / 255 for i in range(n)]
    )


# -- names and sums ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("candy", {"candy": 1.0}),
        (" 0.6*candy + 0.4*mosaic ", {"candy": 0.6, "mosaic": 0.4}),
        ("candy+mosaic-0.5udnie", {"candy": 1.0, "mosaic": 1.0, "udnie": -0.5}),
        ("- .5 candy", {"candy": -0.5}),
        ("1e-1*candy + candy", {"candy": 1.1}),
    ],
)
def test_sums_of_styles_are_read(text, weights):
    assert style.parse_blend(text, NAMES) == pytest.approx(weights)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("candi", "there is no style 'candi'. Did you mean candy? Known: candy, mosaic, udnie"),
        ("", "expected a sum such as"),
        ("candy mosaic", "cannot be read from 'mosaic' on"),
        ("0.5*", "cannot be read from '0.5*' on"),
        ("candy + ", "cannot be read from '+' on"),
        ("0.5*candy / 2", "cannot be read from '/ 2' on"),
    ],
)
def test_other_sums_are_told(text, says):
    with pytest.raises(ValueError) as told:
        style.parse_blend(text, NAMES)
    assert says in str(told.value)


# -- the model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_law_holds(name):
    certificate = made(name)("0.6*candy + 0.4*mosaic", 0.7).certify(images(3))
    assert certificate.passed, str(certificate)


def test_a_blend_mixes_operators_and_strength_leads_from_the_photo():
    model, x = made(), images()
    f, g = model("candy"), model("mosaic")
    blend = model("0.25*candy + 0.75*mosaic")
    z = f.source.coordinates(x)
    expected = 0.25 * f.operator(z) + 0.75 * g.operator(z)
    assert torch.allclose(blend.operator(z), expected)
    assert torch.allclose(model("candy", 0.0)(x), model("photo")(x))
    assert torch.allclose(model("candy", 1.0)(x), f(x))
    assert not torch.allclose(model("candy", 2.0)(x), f(x), atol=1e-3)
    assert torch.equal(model.blend({"candy": 2.0}), 2 * model.kernel("candy"))
    # All maps of one size share their Spaces, so that they add up.
    assert torch.allclose((0.25 * f + 0.75 * g)(x), blend(x))


@pytest.mark.parametrize("name", MODELS)
def test_a_style_is_undone(name):
    model, x = made(name), images(2, 36, 30 if name == "paper" else 28)
    for kernel in (model.kernel("candy"), model.blend("0.5*mosaic + 0.5*udnie", 0.6)):
        assert model.condition(kernel) < 1e6
        once = model.render(x, kernel)
        assert torch.allclose(model.render(once, kernel, undo=True, rtol=1e-12), x, atol=1e-6)


def test_any_size_is_padded_and_cut_back():
    model = made()
    for height, width in ((1, 1), (3, 50), (33, 31)):
        x = images(1, height, width)
        y = model.render(x, model.kernel("candy"))
        assert y.shape == x.shape and y.isfinite().all()


@pytest.mark.parametrize("kind", ["mixing", "paper"])
def test_a_new_style_is_found_in_closed_form(kind):
    """Pictures that some kernel makes give that kernel back."""
    model, x = made(kind), images(16)
    wanted = model.kernel("candy") + 0.1 * torch.randn_like(model.plain)
    y = model.render(x, wanted)
    found = model.fit(x, y, ridge=1e-12)
    assert torch.allclose(found, wanted, atol=1e-6)
    # Where pairs say little, the prior decides.
    assert torch.allclose(model.fit(x, y, ridge=1e9, prior=model.plain), model.plain, atol=1e-5)


def test_an_added_style_is_saved_and_read(tmp_path):
    model = made()
    kernel = torch.randn_like(model.plain)
    more = model.add("mine", kernel)
    assert more.names == (*NAMES, "mine", "photo")
    lz.save(more, tmp_path / "run")
    again = lz.load(tmp_path / "run").double()
    x = images()
    assert torch.allclose(again("0.5*mine")(x), model.map(0.5 * kernel, x.shape[1:])(x))
    assert torch.allclose(again("candy")(x), model("candy")(x))
    assert torch.equal(again.add("mine", 2 * kernel).kernel("mine"), 2 * kernel)
    for name in ("half", "keys", "training"):  # words that torch has, too
        assert torch.equal(model.add(name, kernel).kernel(name), kernel)
    with pytest.raises(ValueError, match="a style of this model already"):
        model.add("candy", kernel)
    with pytest.raises(ValueError, match="'candy' is there twice"):
        style.Style(style.Config(names=("candy", "candy")))
    for weights, strength in (({}, 1.0), ({"candy": float("inf")}, 1.0), ("candy", float("nan"))):
        with pytest.raises(ValueError, match="finite weights and a finite strength"):
            model.blend(weights, strength)
    for name in ("photo", "two words", "3", "a-b", ""):
        with pytest.raises(ValueError, match="expected a name of letters"):
            model.add(name, kernel)


def test_tiles_give_what_the_whole_gives(monkeypatch):
    """All but the wrap of the kernel at the border of the photo."""
    model = made()
    kernel = model.kernel("candy")
    x = images(1, 208, 180)[0]
    norms = [m for m in model.modules() if isinstance(m, ImageNorm)]
    for norm in norms:
        norm.recording = True  # exact with the statistics of the whole
    whole = model.render(x[None], kernel)[0]
    for norm in norms:
        norm.recording = False
    monkeypatch.setattr(use, "_hold_statistics", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(use, "WHOLE", 100)
    monkeypatch.setattr(use, "TILE", 48)
    parts = use.render(model, kernel, x)
    reach = model.reach
    inner = (..., slice(reach, -reach), slice(reach, -reach))
    assert 0 < reach < 80
    assert torch.allclose(parts[inner], whole[inner], atol=1e-9)


def test_large_photos_are_taken_in_tiles(monkeypatch):
    model = made()
    kernel = model.kernel("candy")
    x = images(1, 208, 180)[0]
    whole = model.render(x[None], kernel)[0]
    monkeypatch.setattr(use, "WHOLE", 10_000)
    monkeypatch.setattr(use, "TILE", 48)
    parts = use.render(model, kernel, x)
    assert (parts - whole).abs().mean() < 0.1 * (whole - whole.mean()).abs().mean()
    assert all(m.held is None for m in model.modules() if isinstance(m, ImageNorm))
    model.float()
    in_bytes = (x * 255).round().to(torch.uint8)
    torch.set_default_dtype(torch.float32)
    made_of = use.render(model, kernel.float(), in_bytes)
    assert made_of.dtype == torch.uint8 and made_of.shape == x.shape


class Judge:
    """Stands for LPIPS: three layers of features, and their distance."""

    def activations(self, x):
        return [x, x[:, :, ::2, ::2], x.square()]

    def __call__(self, x, y):
        return (x - y).square().mean((1, 2, 3))


def test_textures_count_late_and_wherever_they_are():
    model, judge = made(), Judge()
    pair = source().batch(torch.arange(8))
    x, y = (t.double() for t in pair[:2])
    batch = Pair(x, y, pair.style, judge)
    early, late = (style.loss(model, batch, Draw(0, done=d)) for d in (0.5, 0.9))
    assert set(early) == {"pixel", "perceptual", "condition"}
    assert set(late) == {*early, "texture"} and float(late["texture"].detach()) > 0
    assert set(style.loss(model, Pair(x, y, pair.style), Draw(0))) == {"pixel", "condition"}
    moved = y.roll((2, 4), (2, 3))
    assert style.texture(judge, moved, y) < 1e-9 < style.texture(judge, x, y)


def test_the_spread_of_a_rotation_is_none():
    model = made()
    rotation = torch.linalg.qr(torch.randn(48, 48))[0]
    kernel = model.family.neutral()
    kernel[..., 1, 1] = rotation
    assert abs(float(model.spread(kernel))) < 1e-9
    assert model.condition(kernel) == pytest.approx(1.0)
    assert float(model.spread(model.kernel("candy").detach())) > 0.01


def test_what_is_too_large_is_refused(monkeypatch):
    x = images(1, 40, 40)[0]
    monkeypatch.setattr(use, "UNDONE", 1000)
    model = made()
    with pytest.raises(ValueError, match="at most 1,000 pixels to undo a style, got 1,600"):
        use.render(model, model.plain, x, undo=True)
    monkeypatch.setattr(use, "WHOLE", 100)
    model = made("paper")
    with pytest.raises(ValueError, match="at most 400 pixels for this model"):
        use.render(model, model.plain, x)


def test_kernels_come_from_a_network_of_the_number():
    family = StyleKernel(3, (2, 8, 8), kernel=3, mixing=True)
    kernels = torch.randn(3, 2, 2, 3, 3)
    family.assign(kernels)
    assert torch.allclose(family.kernels(torch.arange(3.0)), kernels, atol=1e-6)
    assert isinstance(family(0.5), MixingConvolution)
    with pytest.raises(ValueError, match="hidden ≥ styles"):
        StyleKernel(5, (2, 8, 8), hidden=4)


# -- data --------------------------------------------------------------------------------------


def test_pairs_are_crops_of_whole_pictures():
    seen = []

    def net(x):
        seen.append(tuple(x.shape))
        return x.flip(1)

    data = Stylised(photos(2), {"a": net}, 16, crops=3)
    assert len(data) == 2 * 2 * 3
    pair = data.batch(torch.arange(12))
    assert pair.style.tolist() == [0, 0, 0, 1, 1, 1] * 2
    styled = pair.style == 0
    assert torch.equal(pair.y[~styled], pair.x[~styled])
    assert torch.equal(pair.y[styled], pair.x[styled].flip(1))
    assert seen == [(1, 3, 40, 56)] * 2  # once for each photo, and as a whole
    again = Stylised(photos(2), {"a": net}, 16, crops=3).batch(torch.tensor([7, 2]))
    assert torch.equal(again.x[1], pair.x[2]) and torch.equal(again.y[0], pair.y[7])
    assert len({x.sum().item() for x in pair.x[:6]}) > 3  # at different places


def test_small_and_large_photos_fit(tmp_path):
    tiny = tmp_path / "tiny.png"
    Image.fromarray(photo(0, 5, 9)).save(tiny)
    Image.fromarray(photo(0, 900, 30)).save(tmp_path / "tall.png")
    from linearizer.data.photos import load_photo

    data = Stylised(load_photo(tiny), {"a": dark}, 16)
    assert data.batch(torch.tensor([0])).y.shape == (1, 3, 16, 16)
    tall = Stylised(load_photo(tmp_path / "tall.png"), {"a": dark}, 16)
    assert tall._bytes(0, 1).shape == (3, 640, 21)


# -- commands ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with photos, networks and a small run that was trained by command."""
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("style")
    (folder / "photos").mkdir()
    (folder / "nets").mkdir()
    for i in range(10):
        Image.fromarray(photo(i)).save(folder / "photos" / f"{i}.png")
    for i, name in enumerate(("candy", "mosaic", "rain")):
        torch.manual_seed(i)
        state = {k: v.float() for k, v in StyleNet(2).state_dict().items()}
        save_file(state, folder / "nets" / f"{name}.safetensors")
    told = run(
        "train", "style", "--content", folder / "photos", "--teachers", folder / "nets",
        "--styles", "candy,mosaic,rain", "--size", 16, "--steps", 6, "--batch", 4, "--blocks", 1,
        "--output-blocks", 1, "--hidden", 4, "--validate-every", 3, "--keep", "last", "--quiet",
        "--data-root", folder / "none", "--out", folder / "run",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    return folder


def run(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def test_training_writes_a_run(trained):
    config = json.loads((trained / "run" / "config.json").read_text())
    assert config["model"]["names"] == ["candy", "mosaic", "rain"]
    assert (trained / "run" / "samples" / "step-000006.png").exists()
    model = lz.load(trained / "run")
    x = images(1).float()
    assert torch.isfinite(model("candy", shape=x.shape[1:])(x)).all()


def test_a_single_image_is_trained_on_as_a_whole(trained, tmp_path):
    image = tmp_path / "wide.png"
    Image.fromarray(photo(3, 40, 90)).save(image)
    told = run(
        "train", "style", "--preset", "single", "--image", image, "--teachers", trained / "nets",
        "--size", 32, "--steps", 2, "--blocks", 1, "--output-blocks", 1,
        "--hidden", 4, "--quiet", "--data-root", tmp_path, "--out", tmp_path / "run",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"]["shape"] == [3, 32, 64]  # 28 × 64, and rows until 16 divides
    source = load_data(open_run(tmp_path / "run"), tmp_path).train
    assert len(source) == 4  # each style once, and the photo
    x, y, style, _ = source.batch(torch.arange(4))
    assert x.shape == y.shape == (4, 3, 32, 64) and style.tolist() == [0, 1, 2, 3]
    assert torch.equal(x[:, :, 28:], x[:, :, 27:28].expand(-1, -1, 4, -1))
    assert torch.equal(x[3], y[3]) and not torch.equal(x[0], y[0])


def test_a_photo_as_a_whole_is_one_photo():
    white = {str(i): Picture("white.png", lambda: b"") for i in range(2)}
    with pytest.raises(ValueError, match="expected one photo to take as a whole, got 2"):
        Stylised(Photos(white), {}, None)


def test_a_folder_of_another_kind_does_not_hide_a_shipped_model(tmp_path, monkeypatch):
    (tmp_path / "styles").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find("styles") == find(lz.__path__[0] + "/models/styles")
    (tmp_path / "styles" / "config.json").write_text("{}")
    assert find("styles") == Path("styles")


def test_tiles_tell_how_far_they_are(monkeypatch):
    monkeypatch.setattr(use, "WHOLE", 1)
    monkeypatch.setattr(use, "TILE", 64)
    model, seen = made(), []
    x = images(1, 80, 130)[0]
    use.render(model, model.kernel("candy").detach(), x, progress=lambda *told: seen.append(told))
    assert [told[1:] for told in seen] == [(n, 6) for n in range(1, 7)]


def picture(path):
    with Image.open(path) as image:
        assert image.mode == "RGB"
        return image.size


def test_photos_of_every_kind_are_stylised(trained, tmp_path):
    colour = Image.fromarray(photo(0, 21, 34))
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter
    colour.save(tmp_path / "turned.jpg", exif=exif)
    colour.convert("L").save(tmp_path / "grey.png")
    colour.convert("RGBA").save(tmp_path / "clear.png")
    colour.save(tmp_path / "some.webp")
    colour.resize((1, 1)).save(tmp_path / "one.png")
    expected = {"turned.jpg": (21, 34), "grey.png": (34, 21), "clear.png": (34, 21),
                "some.webp": (34, 21), "one.png": (1, 1)}  # fmt: skip
    for name, size in expected.items():
        out = tmp_path / "out.png"
        told = run("stylize", trained / "run", tmp_path / name, "--style",
                   "0.6*candy + 0.4*mosaic", "--strength", 0.8, "-o", out)  # fmt: skip
        assert told.exit_code == 0, told.output
        assert picture(out) == size
    told = run(
        "stylize", trained / "run", *(tmp_path / n for n in expected), "-o", tmp_path / "all"
    )
    assert told.exit_code == 0, told.output
    assert len(list((tmp_path / "all").iterdir())) == 5


def test_without_a_photo_one_is_there(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = run("stylize", trained / "run", "--strip", "candy", "mosaic")
    assert told.exit_code == 0 and "china.jpg" in told.output
    assert picture_exists(tmp_path / "candy-mosaic.png")


def picture_exists(path):
    with Image.open(path) as image:
        return min(image.size) > 50


def test_undoing_goes_through_a_file_of_numbers(trained, tmp_path):
    image = tmp_path / "photo.png"
    Image.fromarray(photo(3, 32, 48)).save(image)
    out, numbers = tmp_path / "out.png", tmp_path / "out.safetensors"

    def error(source, *style):
        told = run("stylize", trained / "run", source, *style, "--undo", "-o",
                   tmp_path / "back.png", "--json")  # fmt: skip
        assert told.exit_code == 0, told.output
        assert json.loads(told.stdout)["condition_number"] > 1
        back = np.asarray(Image.open(tmp_path / "back.png")).astype(float)
        return np.abs(back - photo(3, 32, 48)).mean()

    # Rounding of float32, times the condition number (10⁴) for each undoing: grey levels at most.
    for times, most in ((1, 0.5), (2, 6)):
        style = ("--style", "mosaic", "--times", times)
        run("stylize", trained / "run", image, *style, "-o", out, "--tensor", numbers)
        assert error(numbers, *style) < most < 20 < error(out, *style)  # 8 bits are not enough


def test_a_doubtful_undoing_is_said(trained, tmp_path):
    model = lz.load(trained / "run")
    thin = model.kernel("candy").detach().clone()
    thin[0] *= 1e-7
    lz.save(model.add("thin", thin), tmp_path / "run")
    Image.fromarray(photo(3)).save(tmp_path / "photo.png")
    told = run("stylize", tmp_path / "run", tmp_path / "photo.png", "--style", "thin", "--undo",
               "-o", tmp_path / "back.png")  # fmt: skip
    assert told.exit_code == 0 and "this operator has condition number" in told.stderr
    assert lz.load(tmp_path / "run").condition(torch.zeros_like(thin)) == float("inf")


def test_a_style_is_added_from_a_pair_and_from_a_network(trained, tmp_path):
    before, after = photo(5, 48, 64), 255 - photo(5, 48, 64)
    Image.fromarray(before).save(tmp_path / "before.png")
    Image.fromarray(after).save(tmp_path / "after.png")
    told = run("style", "add", trained / "run", "negative", "--from", tmp_path / "before.png",
               tmp_path / "after.png", "-o", tmp_path / "run", "--json")  # fmt: skip
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["psnr"] > 15
    told = run("style", "add", tmp_path / "run", "rain2", "--teacher",
               trained / "nets" / "rain.safetensors", "--content", trained / "photos")  # fmt: skip
    assert told.exit_code == 0, told.output
    told = run("style", "list", tmp_path / "run", "--json")
    assert list(json.loads(told.stdout)["styles"]) == [
        "candy", "mosaic", "rain", "negative", "rain2", "photo",
    ]  # fmt: skip
    assert lz.load(trained / "run").names == ("candy", "mosaic", "rain", "photo")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stylize", "RUN", "PHOTO", "--style", "candi"], "Did you mean candy?"),
        (["stylize", "RUN", "none.png"], "there is no such file"),
        (["stylize", "RUN", "BROKEN"], "expected a readable image"),
        (["stylize", "RUN", "PHOTO", "--strip", "candy", "no"], "there is no style 'no'"),
        (["stylize", "RUN", "PHOTO", "PHOTO2", "-o", "x.png"], "expected a folder"),
        (["stylize", "RUN", "PHOTO", "--strip", "candy", "rain", "--undo"], "--strip takes one"),
        (["style", "add", "RUN", "new"], "either --from BEFORE AFTER or --teacher"),
        (["style", "add", "RUN", "new", "--from", "PHOTO", "PHOTO2"], "both pictures of one size"),
        (["style", "add", "RUN", "a b", "--from", "PHOTO", "PHOTO"], "a name of letters"),
        (["style", "add", "RUN", "new", "--from", "SMALL", "SMALL"], "at least 16 pixels"),
        (["style", "add", "RUN", "new", "--from", "PHOTO", "PHOTO", "-o", "NETS"], "a new folder"),
        (["stylize", "RUN", "PHOTO", "--strength", "nan"], "a finite strength"),
        (["stylize", "RUN", "PHOTO", "-o", "out.xyz"], "expected an image file such as out.png"),
        (["stylize", "RUN", "NUMBERS"], "of finite floats"),
        (["stylize", "mnist-flow", "PHOTO"], "expected a style model"),
        (["train", "style", "--teachers", "nowhere"], "expected a folder of style networks"),
        (["train", "style", "--teachers", "NETS", "--styles", "cndy"], "Did you mean candy?"),
        (["train", "style", "--teachers", "NETS", "--image", "no.jpg"], "there is no photo"),
    ],
)
def test_mistakes_are_told_in_a_sentence(trained, tmp_path, words, says):
    from linearizer.cli import main

    Image.fromarray(photo(1)).save(tmp_path / "photo.png")
    Image.fromarray(photo(1, 30, 30)).save(tmp_path / "photo2.png")
    Image.fromarray(photo(1, 9, 9)).save(tmp_path / "small.png")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff no")
    write_tensors(tmp_path / "bad.safetensors", {"image": torch.full((3, 8, 8), torch.nan)}, {})
    places = {"RUN": trained / "run", "PHOTO": tmp_path / "photo.png", "NETS": trained / "nets",
              "NUMBERS": tmp_path / "bad.safetensors", "PHOTO2": tmp_path / "photo2.png",
              "SMALL": tmp_path / "small.png",
              "BROKEN": tmp_path / "broken.jpg"}  # fmt: skip
    code, text = called(main, [str(places.get(w, w)) for w in words])
    assert code == 2 and says in text and "Traceback" not in text, text


def called(main, words):
    import io
    import sys

    before, sys.argv = sys.argv, ["linearizer", *words]
    try:
        with contextlib.redirect_stderr(io.StringIO()) as err, pytest.raises(SystemExit) as stop:
            main()
    finally:
        sys.argv = before
    return stop.value.code, err.getvalue()


def test_evaluation_measures_everything(trained, tmp_path):
    words = ("-n", 1, "-o", tmp_path, "--data-root", tmp_path, "--json")
    told = run("evaluate", trained / "run", *words)
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout)
    assert set(result["fidelity"]) == {"candy", "mosaic", "rain"}
    assert all(set(row) == {"ours", "linear", "photo"} for row in result["fidelity"].values())
    assert result["photos"] == 1 and result["held_out"]
    assert result["undo"]["candy"]["psnr"] > 30
    assert {p.name for p in tmp_path.iterdir()} >= {"style.json", "style.png", "strip.png"}


def test_the_source_says_what_it_lacks(trained, tmp_path):
    settings = STYLISED.Settings(
        name=str(trained / "photos"), teachers=str(trained / "nets"), size=16
    )
    notes = STYLISED.load(settings, tmp_path, None).notes
    assert any("no LPIPS weights" in note for note in notes)
