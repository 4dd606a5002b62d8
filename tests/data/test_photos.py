"""Photos of different sizes: what is whole, where crops lie, and files that are no photos."""

import shutil
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from linearizer import data, fit
from linearizer.data import Photos, photos
from linearizer.data.images import Picture
from linearizer.training.draws import Draw
from linearizer.training.loop import Training

SHAPES = [(30, 20), (20, 30), (41, 27), (16, 16), (90, 3), (1, 1)]  # width, height


def rows(*index):
    return torch.tensor(index, dtype=torch.int64)


def write(path, i):
    """Photo i: red tells the column, green the row, blue the photo."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = SHAPES[i % len(SHAPES)]
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(width), np.arange(height)[:, None]
    pixels[..., 2] = i
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path):
    for i in range(12):
        write(tmp_path / "mine" / ("deep" if i % 2 else ".") / f"{i:02d}.png", i)
    (tmp_path / "mine" / "notes.txt").touch()
    return tmp_path / "mine"


@pytest.fixture
def some(folder):
    """The first six photos in their order."""
    paths = sorted(folder.rglob("*.png"), key=lambda p: p.name)[:6]
    return Photos({p.name: Picture(str(p), p.read_bytes) for p in paths}, size=8)


def test_photos_come_whole(some):
    assert len(some) == 6 and some.names[2] == "02.png" and some.shape == (3, 8, 8)
    assert repr(some) == "Photos(6, crops of (3, 8, 8))"
    for i, (width, height) in enumerate(SHAPES):
        x = some.photo(i)
        assert x.shape == (3, height, width) and x.dtype == torch.float32
        assert (x[0, 0] * 255).round().tolist() == list(range(width))
        assert (x[2] * 255).round().unique().tolist() == [i]
    assert some.photo(0) is not some.photo(0)  # one's own, to change at will


def test_a_crop_is_a_piece_of_its_photo_and_any_piece_comes(some):
    index = torch.arange(2000) % 4
    x = (255 * some.crops(index, 16, Draw(3))).round()
    assert x.shape == (2000, 3, 16, 16) and torch.equal(x[:, 2, 0, 0], index.to(x))
    left, right = x[:, 0, 0, 0], x[:, 0, 0, -1]
    mirrored = left > right
    step = torch.where(mirrored, -1, 1)[:, None, None]
    assert torch.equal(x[:, 0], left[:, None, None] + step * torch.arange(16).expand(2000, 16, 16))
    assert torch.equal(x[:, 1], (x[:, 1, :1, :1] + torch.arange(16)[:, None]).expand(2000, 16, 16))
    assert 0.35 < mirrored.double().mean() < 0.65
    for i, (width, height) in enumerate(SHAPES[:4]):
        own = index == i
        columns = torch.minimum(left, right)[own].unique()
        assert columns.tolist() == list(range(width - 15))
        assert x[own, 1, 0, 0].unique().tolist() == list(range(height - 15))


def test_a_crop_depends_on_the_seed_and_the_place_only(some):
    index = torch.arange(100) % 6
    whole = some.crops(index, 8, Draw(7))
    assert torch.equal(some.crops(index[60:], 8, Draw(7, start=60)), whole[60:])
    assert not torch.equal(some.crops(index, 8, Draw(8)), whole)
    torch.set_default_dtype(torch.float32)
    assert torch.equal(some.crops(index, 8, Draw(7)), whole)


def test_batches_are_centre_crops(some):
    x, y = some.batch(rows(2, 0))
    assert y is None and torch.equal(x, some.centres(rows(2, 0), 8))
    assert (x[:, 0, 0, 0] * 255).round().tolist() == [(41 - 8) // 2, (30 - 8) // 2]
    assert (x[:, 1, 0, 0] * 255).round().tolist() == [(27 - 8) // 2, (20 - 8) // 2]
    assert some.batch(rows()).x.shape == (0, 3, 8, 8)
    assert torch.equal(some.centres(rows(3), 16)[0], some.photo(3))


def test_small_photos_are_enlarged(some):
    one = 255 * some.centres(rows(5), 8)  # of a single pixel
    assert torch.allclose(one, one.new_tensor([0, 0, 5])[:, None, None].expand(3, 8, 8))
    thin = 255 * some.centres(rows(4), 8)[0]  # 90×3, from the columns 43 to 45
    assert thin[0].min() > 42 and thin[0].max() < 46 and (thin[0].diff(dim=1) >= 0).all()
    assert some.crops(rows(4, 4, 5), 50, Draw(0)).min() >= 0


def test_photos_are_decoded_once_while_they_fit(folder, monkeypatch):
    opened = []

    def reader(path):
        return lambda: opened.append(path.name) or path.read_bytes()

    def load():
        opened.clear()
        paths = sorted(folder.rglob("*.png"), key=lambda p: p.name)[:2]
        return Photos({p.name: Picture(str(p), reader(p)) for p in paths})

    d = load()
    assert opened == []
    for _ in range(2):
        d.photo(1), d.centres(rows(0, 1, 0), 8)
    assert opened == ["01.png", "00.png"]
    monkeypatch.setattr(photos, "KEPT", 3 * 30 * 20)  # bytes of one of them
    d = load()
    for _ in range(2):
        d.photo(1), d.photo(0)
    assert opened == ["01.png", "00.png", "00.png"]


def test_bad_rows_and_sizes_get_a_sentence(some):
    with pytest.raises(ValueError, match="Photos.photo: expected rows 0 to 5, got 6 to 6"):
        some.photo(6)
    with pytest.raises(ValueError, match="Photos: expected rows 0 to 5, got -1 to -1"):
        some.batch(rows(-1))
    with pytest.raises(TypeError, match="expected an int64 tensor of shape .* got list"):
        some.crops([0], 8, Draw(0))
    with pytest.raises(ValueError, match="crops of size 1 or more, got 0"):
        some.centres(rows(0), 0)


# -- sources -----------------------------------------------------------------------------------


def zipped(folder, path):
    with zipfile.ZipFile(path, "w") as archive:
        for p in sorted(folder.rglob("*.png")):
            archive.write(p, p.relative_to(folder).as_posix())
        archive.writestr("__MACOSX/deep/._01.png", b"not a photo")
    return path


def test_a_folder_and_a_zip_of_photos_are_split_as_images_are(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("LINEARIZER_CACHE", str(tmp_path / "cache"))
    seen = []
    loose = data.load(str(folder), whole=True, progress=lambda *a: seen.append(a))
    packed = data.load(str(zipped(folder, tmp_path / "mine.zip")), size=8)
    images = data.load(str(folder), size=1)
    assert [len(p) for p in loose[1:4]] == [10, 1, 1] and loose.train.shape == (3, 64, 64)
    assert seen[-1] == ("mine", 12, 12) and (loose.name, packed.name) == ("mine", "mine.zip")
    for part, other, squares in zip(loose[1:4], packed[1:4], images[1:4], strict=True):
        assert part.names == other.names
        which = [round(255 * part.photo(i)[2, 0, 0].item()) for i in range(len(part))]
        assert which == squares.images[:, 2, 0, 0].tolist()
        assert [int(name[-6:-4]) for name in part.names] == which
        assert torch.equal(part.photo(0), other.photo(0))
    assert loose.notes == (
        "mine: 12 photos, split 10/1/1 by a fixed seed",
        "mine: batches are centre crops of 64×64",
        "mine: 12 photos are smaller than 64×64; crops of them are enlarged",
    )
    assert packed.notes[2].startswith("mine.zip: 4 photos are smaller than 8×8")


def test_photos_of_one_name_in_two_folders_of_a_zip_are_two(tmp_path):
    for i in range(3):
        write(tmp_path / "all" / str(i) / "photo.png", i)
    d = data.load(str(zipped(tmp_path / "all", tmp_path / "all.zip")))
    assert {p.names[0] for p in d[1:4]} == {f"{i}/photo.png" for i in range(3)}


def test_what_holds_no_photos_is_told(folder, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="digits holds no photos of their full sizes"):
        data.load("digits", whole=True)
    with pytest.raises(
        ValueError, match="mine takes the options size, skip_broken, but got the options chan"
    ):
        data.load(str(folder), whole=True, channels=1)
    with pytest.raises(FileNotFoundError, match="there is no folder or file .*none.zip"):
        data.load(str(tmp_path / "none.zip"))
    (tmp_path / "bad.zip").write_bytes(b"PK no zip")
    with pytest.raises(ValueError, match="bad.zip: expected a whole zip"):
        data.load(str(tmp_path / "bad.zip"))
    with zipfile.ZipFile(tmp_path / "none.zip", "w"):
        pass
    with pytest.raises(ValueError, match="none.zip: expected 3 or more images .* found 0"):
        data.load(str(tmp_path / "none.zip"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match="0[28].png: expected at most 1,000 pixels, but it claims"):
        data.load(str(folder), whole=True)


def test_broken_photos_are_named(folder, tmp_path):
    path = folder / "04.png"
    whole = path.read_bytes()
    path.write_bytes(b"no image")
    with pytest.raises(ValueError, match="04.png: expected a readable image, but it is broken"):
        data.load(str(folder), whole=True)
    with pytest.raises(ValueError, match=r"mine.zip \(04.png\): expected a readable image"):
        data.load(str(zipped(folder, tmp_path / "mine.zip")))
    path.write_bytes(whole[: len(whole) // 2])  # its size can be read, its pixels cannot
    d = data.load(str(folder), whole=True)
    part = next(p for p in d[1:4] if "04.png" in p.names)
    with pytest.raises(ValueError, match="04.png: expected a readable image, but it is broken"):
        part.photo(part.names.index("04.png"))


@pytest.fixture
def small_bsds(tmp_path, monkeypatch):
    """Six photos in the layout of the authors, three of them to train on."""
    monkeypatch.setattr(photos, "SIZES", {"train": 3, "val": 1, "test": 2})
    root = tmp_path / "data"
    for i, part in enumerate(["train", "train", "train", "val", "test", "test"]):
        write(root / "bsds500" / "images" / part / f"{i}00.png", i)
    return root


def test_bsds500_is_read_in_both_layouts(small_bsds):
    official = data.load("bsds500", small_bsds, size=8)
    assert official.train.names == ("train/000.png", "train/100.png", "train/200.png")
    assert [len(p) for p in official[1:4]] == [3, 1, 2]
    index = torch.arange(3)
    x = official.train.batch(index).x
    images = small_bsds / "bsds500" / "images"
    with zipfile.ZipFile(small_bsds / "bsds500" / "bsds500_images.zip", "w") as archive:
        for p in images.rglob("*.png"):
            archive.write(p, f"{p.parent.name}_{p.name}")
    shutil.rmtree(images)
    flat = data.load("bsds500", small_bsds, size=8)
    assert flat.test.names == ("test_400.png", "test_500.png")
    assert torch.equal(flat.train.batch(index).x, x)
    assert flat.notes[0] == "BSDS500: the published split of 6 photos (3/1/2)"
    assert {s.name: s.present for s in data.status(small_bsds)}["bsds500"]


def test_bsds500_must_be_whole_and_is_not_fetched(small_bsds):
    (small_bsds / "bsds500" / "images" / "test" / "400.png").unlink()
    with pytest.raises(ValueError, match="images: expected 3/1/2 photos .* found 3/1/1"):
        data.load("bsds500", small_bsds)
    with pytest.raises(ValueError, match=r"Visit https://www2.eecs.*and put the folder images"):
        data.fetch("bsds500", small_bsds)


def test_photos_train_in_the_general_loop(small_bsds):
    d = data.load("bsds500", small_bsds, size=8)
    model = torch.nn.Conv2d(3, 3, 1).float()

    def loss(model, batch, draw):
        return {"error": (model(batch.x) - batch.x).square().mean()}

    result = fit(model, loss, d.train, Training(steps=3, batch=4, validate_every=0), progress=False)
    assert result.step == 3


def test_the_real_bsds500(data_root):
    if not photos.present(data_root):
        pytest.skip(f"bsds500 is not in {data_root}")
    d = data.load("bsds500", data_root, size=96)
    assert [len(p) for p in d[1:4]] == [200, 100, 200]
    assert d.train.names[0] == "train_100075.jpg" and len(d.notes) == 2
    assert tuple(d.test.photo(0).shape) in ((3, 321, 481), (3, 481, 321))
    x = d.train.crops(torch.arange(20), 96, Draw(0))
    assert x.shape == (20, 3, 96, 96) and 0.3 < x.mean() < 0.6 and x.std() > 0.1
