"""Data: what each source gives, and one sentence for everything that can be wrong with it."""

import gzip
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from linearizer import data
from linearizer.data import Images, Sprites, Table, Windows, celeba, dsprites, files, mnist, tables

REPOSITORY = Path(__file__).parent.parent
REAL = Path(os.environ.get("LINEARIZER_DATA") or REPOSITORY.parent / "shared" / "data")


def real(*parts: str) -> Path:
    """The root of real data, if it has this file."""
    if not REAL.joinpath(*parts).exists():
        pytest.skip(f"{'/'.join(parts)} is not in {REAL}: set LINEARIZER_DATA")
    return REAL


def rows(*index: int) -> torch.Tensor:
    return torch.tensor(index, dtype=torch.int64)


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("LINEARIZER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LINEARIZER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("no_proxy", "*")


# -- names and folders -------------------------------------------------------------------------


def test_importing_pulls_only_torch_numpy_and_pydantic():
    code = (
        "import sys, torch, numpy, linearizer; from pydantic import BaseModel, Field; "
        "before = set(sys.modules); import linearizer.data; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(out.stdout.split()) - sys.stdlib_module_names <= {"linearizer", "pydantic"}


def test_the_root_is_the_argument_then_the_variable_then_the_home_folder(tmp_path, monkeypatch):
    assert data.root_folder(tmp_path / "here") == tmp_path / "here"
    assert data.root_folder() == tmp_path / "data"
    monkeypatch.delenv("LINEARIZER_DATA")
    assert data.root_folder() == Path.home() / ".cache/linearizer/data"


def test_unknown_names_list_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"expected one of digits, mnist.*Did you mean 'mnist'\?"):
        data.load("MNSIT")
    with pytest.raises(ValueError, match=r"fetch: expected one of.*Did you mean 'weather'\?"):
        data.fetch("wether")
    with pytest.raises(FileNotFoundError, match="there is no folder or file /.*/photos"):
        data.load("some/photos")
    with pytest.raises(FileNotFoundError, match="x.csv: there is no such file"):
        data.load(str(tmp_path / "x.csv"))
    (tmp_path / "x.txt").touch()
    with pytest.raises(ValueError, match="a .csv file, got the file .*x.txt"):
        data.load(str(tmp_path / "x.txt"))


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match="digits takes the options size, but got the options sise"):
        data.load("digits", sise=8)
    with pytest.raises(ValueError, match="dsprites takes no options, but got the options size"):
        data.load("dsprites", size=32)
    with pytest.raises(ValueError, match="weather takes the options look_back, horizon"):
        data.load("weather", missing="drop")


@pytest.mark.parametrize("name", ["mnist", "celeba", "bsds500", "weather"])
def test_missing_files_say_where_they_belong(name, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        data.load(name)
    said = str(caught.value)
    assert str(tmp_path / "data" / name) in said
    assert "LINEARIZER_DATA" in said and "--data-root" in said
    assert ("linearizer data fetch" in said) == (name in ("mnist", "weather"))


def test_status_says_what_is_there(tmp_path):
    before = {s.name: s for s in data.status(tmp_path)}
    assert list(before) == list(data.NAMES)
    assert before["digits"].present and before["digits"].folder is None
    assert not any(before[n].present for n in ("mnist", "celeba", "bsds500", "dsprites", "weather"))
    assert [n for n, s in before.items() if s.downloadable] == ["mnist", "dsprites", "weather"]
    (tmp_path / "weather").mkdir()
    (tmp_path / "weather" / "weather.csv").touch()
    after = {s.name: s for s in data.status(tmp_path)}
    assert after["weather"].present and after["weather"].folder == tmp_path / "weather"


# -- images ------------------------------------------------------------------------------------


def test_a_batch_of_images_is_float32_in_the_unit_interval():
    images = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    x, y = Images(images).batch(rows(4, 0, 4))
    assert x.dtype == torch.float32 and y is None
    assert torch.equal(x, images[[4, 0, 4]].to(torch.float32) / 255)
    one = Images(images, torch.arange(5), "abcde")
    assert one.classes and one.batch(rows(3, 1)).y.tolist() == [3, 1]
    many = Images(images, torch.eye(5, dtype=torch.bool), "abcde")
    y = many.batch(rows(2)).y
    assert not many.classes and y.dtype == torch.float32 and y.tolist() == [[0, 0, 1, 0, 0]]
    assert len(many.batch(rows()).x) == 0
    assert repr(many) == "Images(5 of (3, 4, 4), 5 attributes)"


def test_bad_images_and_rows_get_a_sentence():
    images = torch.zeros(5, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="expected uint8 of shape"):
        Images(images.float())
    with pytest.raises(ValueError, match="labels .* for 5 images, got torch.int64 of shape"):
        Images(images, torch.arange(4))
    with pytest.raises(ValueError, match="a name for each of 3 attributes, got 2"):
        Images(images, torch.zeros(5, 3, dtype=torch.bool), "ab")
    with pytest.raises(TypeError, match="expected an int64 tensor of shape .* got list"):
        Images(images).batch([0])
    with pytest.raises(TypeError, match="got torch.float64 of shape"):
        Images(images).batch(torch.zeros(2))
    with pytest.raises(ValueError, match="expected rows 0 to 4, got 0 to 5"):
        Images(images).batch(rows(0, 5))
    with pytest.raises(ValueError, match="got -1 to -1"):
        Images(images).batch(rows(-1))


def test_digits_need_no_files_and_are_always_the_same():
    one, two = data.load("digits"), data.load("digits", size=12)
    assert [len(p) for p in one[1:4]] == [1200, 300, 297]
    assert one.train.names == tuple("0123456789") and one.train.classes
    assert torch.equal(two.test.images[:, :, 2:10, 2:10], one.test.images)
    assert two.test.images.sum() == one.test.images.sum()
    assert one.train.images.max() == 255 and len(one.train.images.unique()) == 17
    whole = torch.cat([p.images for p in one[1:4]]).flatten(1)
    assert len(whole) == 1797 and torch.bincount(one.val.labels).min() > 15
    with pytest.raises(ValueError, match="images are 8×8 .* size=7 is smaller"):
        data.load("digits", size=7)
    with pytest.raises(ValueError, match="digits needs no files"):
        data.fetch("digits")


# -- mnist -------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """Four files in the manner of MNIST, with 20 and 5 digits, known by their own checksums."""
    rng = np.random.default_rng(0)
    shapes = ((20, 28, 28), (20,), (5, 28, 28), (5,))
    contents, known = {}, {}
    for name, shape in zip(mnist.FILES, shapes, strict=True):
        contents[name] = idx(rng.integers(0, 10, shape))
        known[name] = mnist.Idx(shape, hashlib.md5(contents[name]).hexdigest())
    monkeypatch.setattr(mnist, "FILES", known)
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder


def test_mnist_reads_packed_and_unpacked_files(small_mnist):
    packed = data.load("mnist")
    for path in small_mnist.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    plain = data.load("mnist", small_mnist.parent)
    assert [len(p) for p in plain[1:4]] == [10, 10, 5]
    assert torch.equal(plain.train.images, packed.train.images)
    assert torch.equal(plain.test.labels, packed.test.labels)


def test_a_cut_or_changed_mnist_file_is_named(small_mnist):
    path = small_mnist / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    content = gzip.decompress(whole)
    file = mnist.FILES["train-images-idx3-ubyte"]
    flipped = bytearray(content)
    flipped[5000] ^= 1
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 0x55
    cases = [
        (whole[:-500], r"expected a whole gzip, but it ends early at [\d,]+ bytes"),
        (bytes(broken), "expected"),
        (b"<html>not found</html>", "expected an intact gzip, but found Not a gzipped file"),
        (gzip.compress(flipped), rf"expected md5 {file.md5} unpacked, found [0-9a-f]{{32}}"),
        (gzip.compress(b"\0\0\x08\x01" + content[4:]), "header 00 00 08 03, found 00 00 08 01"),
        (gzip.compress(content[:-9]), r"\(20, 28, 28\) in 15,696 bytes, found .* in 15,687 bytes"),
        (gzip.compress(idx(np.zeros((19, 28, 28)))), r"found \(19, 28, 28\) in 14,912 bytes"),
        (gzip.compress(b""), "expected an idx header"),
    ]
    for bytes_, said in cases:
        path.write_bytes(bytes_)
        with pytest.raises(ValueError, match=said) as caught:
            data.load("mnist")
        assert str(path) in str(caught.value)
        assert "Delete it and run `linearizer data fetch mnist`." in str(caught.value)


def test_the_real_mnist_is_whole():
    root = real("mnist", "train-images-idx3-ubyte.gz")
    d = data.load("mnist", root, size=32)
    assert [len(p) for p in d[1:4]] == [55000, 5000, 10000] and d.train.shape == (1, 32, 32)
    assert torch.bincount(d.test.labels).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    x, y = d.train.batch(rows(0))
    assert y.item() == 5 and x[0, 0, :2].sum() == 0 and round(x.mean().item(), 3) == 0.105
    assert "last 5,000" in d.notes[0]


# -- celeba ------------------------------------------------------------------------------------


def write_image(path: Path, size=(89, 109), colour=(10, 20, 30), **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "L" if isinstance(colour, int) else "RGB"
    Image.new(mode, size, colour).save(path, **options)
    return path


@pytest.fixture
def small_celeba(tmp_path):
    """Six faces in the official layout; face i has red 40 i, and attribute j if i > j."""
    folder = tmp_path / "data" / "celeba"
    names = [f"{i:06d}.jpg" for i in range(1, 7)]
    for i, name in enumerate(names, 1):
        write_image(folder / "img_align_celeba" / name, (178, 218), (40 * i, 0, 0), quality=95)
    lines = [
        f"{n} " + " ".join("1" if i > j else "-1" for j in range(3)) for i, n in enumerate(names)
    ]
    (folder / "list_attr_celeba.txt").write_text("\n".join(["6", "Bald Smiling Young ", *lines]))
    parts = "\n".join(f"{n} {p}" for n, p in zip(names, "000211", strict=True))
    (folder / "list_eval_partition.txt").write_text(parts + "\n")
    return folder


def test_celeba_official_layout_keeps_the_official_split(small_celeba):
    seen = []
    d = data.load("celeba", size=16, progress=lambda *a: seen.append(a))
    assert [len(p) for p in d[1:4]] == [3, 2, 1] and d.train.shape == (3, 16, 16)
    assert seen == [("celeba", 6, 6)]
    assert d.test.labels.tolist() == [[True, True, True]]
    assert d.train.names == ("Bald", "Smiling", "Young")
    x, y = d.val.batch(rows(0))
    assert abs(x[0, 0].mean().item() * 255 - 200) < 3 and y.tolist() == [[1, 1, 1]]
    assert "official split of 6 images (3/2/1)" in d.notes[0]
    assert "178×178 of 178×218" in d.notes[1]


def test_celeba_from_an_archive_is_the_same(small_celeba):
    loose = data.load("celeba", size=16)
    with zipfile.ZipFile(small_celeba / "img_align_celeba.zip", "w") as archive:
        for path in (small_celeba / "img_align_celeba").iterdir():
            archive.write(path, f"img_align_celeba/{path.name}")
            path.unlink()
    (small_celeba / "img_align_celeba").rmdir()
    with zipfile.ZipFile(small_celeba / "list_attr_celeba.zip", "w") as archive:
        archive.write(small_celeba / "list_attr_celeba.txt", "list_attr_celeba.txt")
    (small_celeba / "list_attr_celeba.txt").unlink()
    packed = data.load("celeba", size=16)
    assert torch.equal(packed.train.images, loose.train.images)
    assert torch.equal(packed.test.labels, loose.test.labels)


def test_celeba_reduced_layout_says_that_the_split_is_ours(small_celeba, monkeypatch):
    monkeypatch.setattr(celeba, "REDUCED_SPLIT", (3, 1, 2))
    with zipfile.ZipFile(small_celeba / celeba.REDUCED, "w") as archive:
        for path in (small_celeba / "img_align_celeba").iterdir():
            archive.write(path, f"celebA/{path.name}")
    (small_celeba / "list_eval_partition.txt").unlink()
    text = data.load("celeba", size=8)
    assert [len(p) for p in text[1:4]] == [3, 1, 2]
    assert "our own split of the first 6 images (3/1/2)" in text.notes[0]
    bits = np.packbits([[i > j for j in range(3)] for i in range(6)], axis=1)
    np.savez(small_celeba / "celeba_attr_all.npz", bits=bits, names=["Bald", "Smiling", "Young"])
    (small_celeba / "list_attr_celeba.txt").unlink()
    packed = data.load("celeba", size=8)
    assert torch.equal(packed.train.labels, text.train.labels)
    (small_celeba / "celeba_attr_all.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(ValueError, match=r"celeba_attr_all.npz: expected arrays bits and names"):
        data.load("celeba", size=8)
    (small_celeba / "celeba_attr_all.npz").unlink()
    with pytest.raises(FileNotFoundError, match="expected list_attr_celeba.txt"):
        data.load("celeba", size=8)
    whole = (small_celeba / celeba.REDUCED).read_bytes()
    (small_celeba / celeba.REDUCED).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"celeba_10k_89x109.zip: expected a whole zip"):
        data.load("celeba", size=8)


def test_celeba_lists_and_images_must_agree(small_celeba):
    attributes = small_celeba / "list_attr_celeba.txt"
    lines = attributes.read_text().splitlines()
    for text, said in [
        ("\n".join(lines[:-1]), "1 are not there, first 000006.jpg"),
        ("\n".join([*lines[:-1], "000006.jpg 1 -1"]), "expected 3 values 1 or -1, line 8 has"),
        ("", "expected a count, the names"),
    ]:
        attributes.write_text(text)
        with pytest.raises(ValueError, match=said):
            data.load("celeba", size=8)
    (small_celeba / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(ValueError, match="expected 6 images, 1 are not there, first 000002.jpg"):
        data.load("celeba", size=8)
    for text, said in [("000001.jpg 3", "line 1 says '000001.jpg 3'"), ("a 0\nb 1", "empty part")]:
        (small_celeba / "list_eval_partition.txt").write_text(text)
        with pytest.raises(ValueError, match=said):
            data.load("celeba", size=8)


def test_celeba_cannot_be_fetched_but_the_page_can_be_named(tmp_path):
    with pytest.raises(ValueError, match=r"Visit http://mmlab.*list_attr_celeba.txt") as caught:
        data.fetch("celeba")
    assert str(tmp_path / "data" / "celeba") in str(caught.value)


def test_the_real_celeba_has_ten_thousand_faces():
    root = real("celeba", celeba.REDUCED)
    d = data.load("celeba", root, size=16)
    assert [len(p) for p in d[1:4]] == [8000, 1000, 1000] and d.train.labels.shape == (8000, 40)
    share = d.train.labels.double().mean(0)
    assert abs(share[d.train.names.index("Male")] - 0.42) < 0.02
    again = data.load("celeba", root, size=16)
    assert torch.equal(again.train.images[:5], d.train.images[:5])
    with np.load(root / "celeba" / "celeba_attr_all.npz") as arrays:
        bits = np.unpackbits(arrays["bits"], axis=1)[:8000, :40]
    assert np.array_equal(bits.astype(bool), d.train.labels.numpy())


# -- folders of images and the cache -----------------------------------------------------------


def test_a_folder_of_images_is_split_and_labelled_by_its_folders(tmp_path):
    for i in range(10):
        write_image(tmp_path / "pets" / "cats" / f"{i}.png", (20, 30), (200, 0, 0))
        write_image(tmp_path / "pets" / "dogs" / "deep" / f"{i}.JPG", (30, 20), (0, 0, 200))
    (tmp_path / "pets" / "readme.txt").touch()
    (tmp_path / "pets" / ".hidden.png").touch()
    d = data.load(str(tmp_path / "pets"), size=8)
    assert (d.name, d.train.shape, d.train.names) == ("pets", (3, 8, 8), ("cats", "dogs"))
    assert [len(p) for p in d[1:4]] == [16, 2, 2]
    for part in d[1:4]:
        x, y = part.batch(torch.arange(len(part)))
        assert ((x[:, 2].mean((1, 2)) > 0.5) == (y == 1)).all()
    write_image(tmp_path / "pets" / "loose.png")
    assert data.load(str(tmp_path / "pets"), size=8).train.labels is None


def test_the_split_does_not_depend_on_the_moment(tmp_path, monkeypatch):
    for i in range(12):
        write_image(tmp_path / "grey" / f"{i:02d}.png", (8, 8), 10 * i)
    one = data.load(str(tmp_path / "grey"), size=8)
    torch.manual_seed(5)
    monkeypatch.chdir(tmp_path / "grey")
    two = data.load(".", size=8, channels=3)
    assert two.name == "grey"
    assert one.train.shape == (1, 8, 8) and two.train.shape == (3, 8, 8)
    assert torch.equal(one.test.images[:, 0], two.test.images[:, 1])
    values = torch.cat([p.images[:, 0, 0, 0] for p in one[1:4]])
    assert sorted(values.tolist()) == [10 * i for i in range(12)]


def test_pictures_are_upright_square_opaque_and_eight_bit(tmp_path):
    folder = tmp_path / "odd"
    # A 16-bit gradient, a transparent image, a turned photo, a wide one and a moving one.
    deep = np.tile(np.linspace(0, 65535, 32).astype(np.uint16), (32, 1))
    folder.mkdir()
    Image.fromarray(deep).save(folder / "a.png")
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(folder / "b.png")
    turned = Image.new("RGB", (16, 16))
    turned.paste((255, 255, 255), (0, 0, 16, 8))  # white above; orientation 6 turns it right
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(folder / "c.jpg", exif=exif, quality=95)
    wide = Image.new("RGB", (48, 16), (255, 0, 0))
    wide.paste((0, 255, 0), (16, 0, 32, 16))
    wide.save(folder / "d.bmp")
    frames = [Image.new("L", (16, 16), v) for v in (255, 0)]
    frames[0].save(folder / "e.gif", save_all=True, append_images=frames[1:])
    d = data.load(str(folder), size=16)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(0)).tolist()
    both = torch.cat([p.images for p in d[1:4]])
    a, b, c, wide, moving = (both[order.index(i)] for i in range(5))
    assert a.shape == (3, 16, 16) and a[0, 8, 0] < 12 and a[0, 8, -1] > 243
    assert 115 < a[0, 8, 7] < 140
    assert (b == 255).all()
    assert c[:, :, 12:].float().mean() > 240 and c[:, :, :4].float().mean() < 15
    assert (wide[1] == 255).all() and (wide[0] == 0).all()
    assert (moving == 255).all()


def test_broken_pictures_are_named_and_leave_no_cache(tmp_path):
    folder = tmp_path / "some"
    for i in range(4):
        write_image(folder / f"{i}.jpg", (64, 64))
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "4.jpg")
    whole = (folder / "4.jpg").read_bytes()
    for content in (whole[: len(whole) // 2], b"no image", b""):
        (folder / "4.jpg").write_bytes(content)
        for channels in (None, 3):
            with pytest.raises(ValueError, match=r"4.jpg: expected a readable image, but it is"):
                data.load(str(folder), size=8, channels=channels)
    assert list((tmp_path / "cache").iterdir()) == []
    (folder / "4.jpg").write_bytes(whole)
    assert len(data.load(str(folder), size=8).train) == 3


def test_all_broken_pictures_are_named_or_left_out(tmp_path):
    folder = tmp_path / "some"
    for i in range(9):
        write_image(folder / f"{i}.png", (8, 8))
    whole = data.load(str(folder), size=8)
    for i in range(9, 21):
        (folder / f"{i}.png").write_bytes(b"no image")
    for options in ({}, {"channels": 3}, {"whole": True}):
        with pytest.raises(ValueError, match="12 of 21 are broken: ") as caught:
            data.load(str(folder), **options)
        said = str(caught.value)
        assert said.count(".png") == 11 and "(12 in all)" in said and "--skip-broken" in said
    for _ in range(2):  # once from the cache
        d = data.load(str(folder), size=8, skip_broken=True)
        assert torch.equal(d.train.images, whole.train.images)
        assert d.notes[-1].startswith("some: 12 broken images were left out: 10.png, 11.png")
    photos = data.load(str(folder), whole=True, skip_broken=True)
    assert len(photos.train) == 7 and "12 broken images were left out" in photos.notes[-1]
    with pytest.raises(ValueError, match="2 of 3 are broken"):
        data.read_images([folder / f"{i}.png" for i in (8, 9, 10)], (3, 8, 8))


@pytest.mark.parametrize("limit", [3000, 1500])  # Pillow warns above the limit, refuses above twice
def test_decompression_bombs_are_refused(tmp_path, monkeypatch, limit):
    for i in range(3):
        write_image(tmp_path / "some" / f"{i}.png", (10 if i else 64, 64))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    said = rf"0.png: expected at most {limit:,} pixels, but it claims more"
    with pytest.raises(ValueError, match=said):
        data.load(str(tmp_path / "some"), size=8)


def test_bad_folders_and_sizes_get_a_sentence(tmp_path):
    write_image(tmp_path / "few" / "0.png")
    write_image(tmp_path / "few" / "1.png")
    with pytest.raises(ValueError, match="expected 3 or more images .* found 2"):
        data.load(str(tmp_path / "few"))
    write_image(tmp_path / "few" / "2.png")
    with pytest.raises(ValueError, match="expected size of 1 or more, got 0"):
        data.load(str(tmp_path / "few"), size=0)
    with pytest.raises(ValueError, match="expected channels 1, 3 or None, got 2"):
        data.load(str(tmp_path / "few"), channels=2)
    assert [len(p) for p in data.load(str(tmp_path / "few"))[1:4]] == [1, 1, 1]


def test_the_cache_follows_the_files_and_mends_itself(tmp_path, monkeypatch):
    for i in range(3):
        write_image(tmp_path / "some" / f"{i}.png", (8, 8), 100)
    seen = []

    def load():
        return data.load(str(tmp_path / "some"), size=8, progress=lambda *a: seen.append(a))

    first = load()
    assert len(seen) == 1 and (first.train.images == 100).all()
    load()
    assert len(seen) == 1  # from the cache
    first.train.images.zero_()  # memory-mapped, but the file stays as it is
    assert (load().train.images == 100).all()
    (cached,) = (tmp_path / "cache").iterdir()
    cached.write_bytes(cached.read_bytes()[:-10])
    assert (load().train.images == 100).all() and len(seen) == 2
    for i in range(3):
        write_image(tmp_path / "some" / f"{i}.png", (8, 8), 50)
        os.utime(tmp_path / "some" / f"{i}.png", (i, i))
    assert (load().train.images == 50).all() and len(seen) == 3
    (tmp_path / "taken").touch()
    monkeypatch.setenv("LINEARIZER_CACHE", str(tmp_path / "taken"))
    with pytest.raises(OSError, match=r"cannot write .*taken.* LINEARIZER_CACHE"):
        load()


# -- dsprites ----------------------------------------------------------------------------------


def test_rendered_sprites_match_published_frames():
    root = real("dsprites", "real_frames.npz")
    with np.load(root / "dsprites" / "real_frames.npz", allow_pickle=False) as z:
        factors = np.concatenate([z["gif_latents"], z["sample_latents_fit"]]).astype(np.int64)
        bits = np.concatenate([z["gif_bits"], z["sample_bits"]])
    frames = torch.from_numpy(np.unpackbits(bits, axis=1)).view(-1, 1, 64, 64)
    wrong = (dsprites.render(torch.from_numpy(factors)) != frames).flatten(1).sum(1)
    assert len(frames) == 420 and (wrong == 0).sum() >= 405 and wrong.max() <= 7


def test_sprites_have_factors_and_the_geometry_they_name():
    d = data.load("dsprites")
    assert d.train is d.val is d.test and len(d.train) == 737280
    assert "re-rendered dSprites" in d.notes[0] and "no split" in d.notes[1]
    sprites = d.train
    index = torch.randint(0, len(sprites), (200,))
    x, factors = sprites.batch(index)
    assert x.shape == (200, 1, 64, 64) and x.dtype == torch.float32
    assert factors.dtype == torch.int64 and torch.equal(sprites.factors(index), factors)
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(sprites.index(factors), index)
    # The order of the batch does not matter, whatever shapes it mixes.
    for i in (0, 77):
        assert torch.equal(sprites.batch(index[i : i + 1]).x[0], x[i])
    # The centroid follows the position: 16 + 32 p/31 pixels, hearts a little off.
    pixel = torch.arange(64) + 0.5
    area = x.sum((1, 2, 3)).double()
    centre = torch.stack([(x.double().sum((1, 2)) @ pixel), (x.double().sum((1, 3)) @ pixel)], 1)
    off = (centre / area[:, None] - (16 + 32 / 31 * factors[:, 3:])).abs()
    assert off[factors[:, 0] < 2].max() < 0.5 and off.max() < 2.5
    # The area follows the square of the scale.
    scale = 0.5 + 0.1 * factors[:, 1]
    unit = torch.tensor([4 * 9.5993**2, torch.pi * 12.765 * 7.2125, 224.6])[factors[:, 0]]
    assert ((area / scale**2 / unit - 1).abs() < 0.2).all()
    # A full turn is the start.
    turn = torch.tensor([[2, 3, 0, 5, 9], [2, 3, 39, 5, 9]])
    assert torch.equal(*dsprites.render(turn))
    assert dsprites.render(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 1, 64, 64)


def test_bad_factors_get_a_sentence():
    sprites = Sprites()
    with pytest.raises(ValueError, match=r"expected 0 ≤ factors < \(3, 6, 40, 32, 32\)"):
        sprites.index(torch.tensor([[3, 0, 0, 0, 0]]))
    with pytest.raises(ValueError, match=r"expected factors \(n, 5\) int64"):
        sprites.index(torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected rows 0 to 737279"):
        sprites.batch(rows(737280))
    with pytest.raises(ValueError, match=r"expected bits \(737280, 512\) uint8"):
        Sprites(torch.zeros(3, 512, dtype=torch.uint8))


@pytest.fixture
def small_dsprites(tmp_path, monkeypatch):
    """An npz in the manner of the published one, of 3 × 2 × 2 × 4 × 4 images."""
    sizes = (3, 2, 2, 4, 4)
    monkeypatch.setattr(dsprites, "SIZES", sizes)
    monkeypatch.setattr(dsprites, "COUNT", 192)
    path = tmp_path / "data" / "dsprites" / dsprites.FILE
    path.parent.mkdir(parents=True)
    arrays = {
        "metadata": np.array({"pickled": "never read"}, dtype=object),
        "imgs": np.random.default_rng(0).integers(0, 2, (192, 64, 64), dtype=np.uint8),
        "latents_classes": np.stack(np.unravel_index(np.arange(192), (1, *sizes)), 1),
    }
    np.savez_compressed(path, **arrays)
    return path, arrays


def test_the_published_sprites_are_read_where_they_are(small_dsprites):
    path, arrays = small_dsprites
    seen = []
    d = data.load("dsprites", progress=lambda *a: seen.append(a))
    assert seen[-1] == ("dsprites", 192, 192) and d.notes[0] == "dSprites: the published images"
    x, y = d.train.batch(rows(191, 5))
    assert np.array_equal(x[:, 0].numpy(), arrays["imgs"][[191, 5]]) and x.dtype == torch.float32
    assert y.tolist() == arrays["latents_classes"][[191, 5], 1:].tolist()
    assert data.fetch("dsprites") == path.parent  # there already


def test_damaged_sprites_are_named(small_dsprites):
    path, arrays = small_dsprites
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    with pytest.raises(ValueError, match=r"64x64.npz: expected a whole zip.*data fetch dsprites"):
        data.load("dsprites")
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        archive.writestr("imgs.npy", b"no array")
    os.replace(path.with_suffix(".zip"), path)
    with pytest.raises(ValueError, match="expected an array imgs, but"):
        data.load("dsprites")
    broken = bytearray(whole)
    broken[20000] ^= 0xFF  # inside the images
    path.write_bytes(broken)
    with pytest.raises(ValueError, match="expected whole images, but"):
        data.load("dsprites")
    for name, array, said in [
        ("imgs", arrays["imgs"][:-1], r"expected imgs \(192, 64, 64\) .* found \(191, 64, 64\)"),
        ("latents_classes", arrays["latents_classes"][::-1], "expected the factors in order"),
    ]:
        np.savez(path, **{**arrays, name: array})
        with pytest.raises(ValueError, match=said):
            data.load("dsprites")


# -- tables ------------------------------------------------------------------------------------


def table(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_csv_columns_and_times(tmp_path):
    t = data.read_csv(table(tmp_path, "date,a,b\r\n2020-01-01,1,2.5\r\n2020-01-02,-3e2,4\r\n"))
    assert t.columns == ("a", "b") and t.times == ("2020-01-01", "2020-01-02") and t.notes == ()
    assert t.values.tolist() == [[1, 2.5], [-300, 4]] and t.values.dtype == torch.float64
    for text, columns, times in [
        ("a,b\n1,2\n3,4\n", ("a", "b"), ()),
        ("\ufeffTime;x\n0.5;1\n1.5;2", ("x",), ("0.5", "1.5")),
        ("when\ty\n01.02.2020 10:00\t1\n\n01.02.2020 11:00\t2\n", ("y",), 2),
        ('"a, b",c\n1,2\n', ("a, b", "c"), ()),
        ("x,y,timestamp\n1,2,noon\n", ("x", "y"), ("noon",)),
    ]:
        for name in ("t.csv", "t.csv.gz"):
            t = data.read_csv(table(tmp_path, text, name))
            assert t.columns == columns, text
            assert len(t.times) == times if isinstance(times, int) else t.times == times
    t = data.read_csv(table(tmp_path, "x,label\n1,one\n2,two\n"), time="label")
    assert t.columns == ("x",) and t.times == ("one", "two")
    path = tmp_path / "latin.csv"
    path.write_bytes("date,W/m²\n2020-01-01,1\n".encode("latin-1"))
    assert data.read_csv(path).columns == ("W/m\ufffd",)


def test_bad_csv_files_get_a_sentence(tmp_path):
    for text, said in [
        ("a,b\n1,2\n3,four\n", r"line 3, column 'b', found 'four'"),
        ('a,b\n1,"2\n"\n\n3,x\n', r"line 5, column 'b', found 'x'"),
        ("a,b\n1,inf\n", r"line 2, column 'b', found 'inf'"),
        ("a,b\n1,2\n3\n", "expected 2 cells in every line, as in the header, but line 3 has 1"),
        ("a,b\n", "expected a header and rows, found 1 lines"),
        ("", "expected a header and rows, found 0 lines"),
        ("date\n2020-01-01\n", "expected columns of numbers, found only 'date'"),
        ("a\n" + "1" * 200_000, "expected a CSV table, but line 2: field larger"),
    ]:
        with pytest.raises(ValueError, match=said):
            data.read_csv(table(tmp_path, text))
    path = table(tmp_path, "times,a\n1,2\n")
    with pytest.raises(ValueError, match=r"expected a column 'time' .* Did you mean 'times'\?"):
        data.read_csv(path, time="time")
    with pytest.raises(ValueError, match=r"expected a column 'zzz' .* It has times, a\."):
        data.read_csv(path, time="zzz")
    with pytest.raises(ValueError, match="expected missing one of .* got 'guess'"):
        data.read_csv(path, missing="guess")
    packed = table(tmp_path, "a,b\n" + "1,2\n" * 1000, "t.csv.gz")
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"t.csv.gz: expected a whole gzip, but it ends early"):
        data.read_csv(packed)


def test_missing_cells_follow_the_policy(tmp_path):
    path = table(tmp_path, "date,a,b\n1,1,10\n2,,NaN\n3,na,30\n4,7,N/A\n")
    said = (
        r"some are missing: 2 in 'a', 2 in 'b'. Choose --fill interpolate, previous or drop "
        r"\(in Python missing=\). They are in line 3, column 'a'; line 3, column 'b'; line 4"
    )
    with pytest.raises(ValueError, match=said):
        data.read_csv(path)
    t = data.read_csv(path, missing="interpolate")
    assert t.values.tolist() == [[1, 10], [3, 20], [5, 30], [7, 30]]
    assert "filled by interpolation: 2 in 'a', 2 in 'b'" in t.notes[0]
    t = data.read_csv(path, missing="previous")
    assert t.values.tolist() == [[1, 10], [1, 10], [1, 30], [7, 30]]
    t = data.read_csv(path, missing="drop")
    assert t.values.tolist() == [[1, 10]] and t.times == ("1",)
    assert "3 rows with missing values were dropped" in t.notes[0]
    path = table(tmp_path, "a,b\n,1\n2,2\n")
    assert data.read_csv(path, missing="interpolate").values[0, 0] == 2
    with pytest.raises(ValueError, match="first value of column 'a' is missing"):
        data.read_csv(path, missing="previous")
    path = table(tmp_path, "a,b\n,1\n,2\n")
    with pytest.raises(ValueError, match="column 'a' has no number at all"):
        data.read_csv(path, missing="drop")
    path = table(tmp_path, "a,b\n,1\n2,\n")
    with pytest.raises(ValueError, match="every row has a missing value"):
        data.read_csv(path, missing="drop")


def test_all_broken_cells_are_named_at_once(tmp_path):
    path = table(tmp_path, "t,a,b,c\n" + "".join(f"{i},x{i},1,1e308\n" for i in range(8)))
    with pytest.raises(ValueError) as caught:
        data.read_csv(path)
    said = str(caught.value)
    assert "in line 2, column 'a', found 'x0'; line 2, column 'c', found '1e308', beyond" in said
    assert said.count("; line") == 9 and "… (16 in all)" in said
    assert "--columns numeric" in said and len(said) < 900
    path = table(tmp_path, "a,b\n1,x\n,2\n3,\n")
    with pytest.raises(ValueError, match=r"line 2, column 'b', found 'x' \(2 more are missing\)"):
        data.read_csv(path)


def test_columns_of_text_are_left_out(tmp_path):
    path = table(tmp_path, "date,a,where,empty,b\n1,1,here,,5\n2,,there,,6\n3,2,-9,,1e-3\n")
    t = data.read_csv(path, columns="numeric", missing="drop")
    assert t.columns == ("a", "b") and t.values.tolist() == [[1, 5], [2, 1e-3]]
    assert "left out, as not all cells are numbers: 'where', 'empty'" in t.notes[0]
    with pytest.raises(ValueError, match="expected columns of numbers, found only text"):
        data.read_csv(table(tmp_path, "a,b\nx,y\n"), columns="numeric")
    rows = "".join(f"{i},{i * i % 7},w\n" for i in range(60))
    loaded = data.load(
        str(table(tmp_path, "a,b,c\n" + rows)), look_back=4, horizon=2, columns="numeric"
    )
    assert loaded.train.columns == ("a", "b") and any("'c'" in note for note in loaded.notes)


def test_a_table_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "sparse.csv"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(ValueError, match="sparse.csv: expected at most 512 MB of text, got more"):
        data.read_csv(path)
    packed = table(tmp_path, "a\n" + "1\n" * (1 << 20), "t.csv.gz")
    monkeypatch.setattr("linearizer.data.tables.LARGEST_FILE", 1 << 20)
    with pytest.raises(ValueError, match="t.csv.gz: expected at most 1 MB"):
        data.read_csv(packed)


def test_messages_about_many_columns_are_short(tmp_path):
    names = [f"c{i}" for i in range(5000)]
    path = table(tmp_path, ",".join(names) + "\n" + ",".join(["1"] * 5000) + "\n")
    for options in ({"time": "zzz"}, {"columns": ["zzz"]}):
        with pytest.raises(ValueError, match=r"c9 … \(5,000 in all\)") as caught:
            data.read_csv(path, **options)
        assert len(str(caught.value)) < 400
    path = table(tmp_path, ",".join(names) + "\n" + "," * 4999 + "\n")
    with pytest.raises(ValueError, match=r"1 in 'c9' … \(5,000 in all\)") as caught:
        data.read_csv(path)
    assert len(str(caught.value)) < 1000


def test_sentinels_are_reported_and_changed_only_when_named(tmp_path):
    path = table(tmp_path, "a,b\n1,-9999\n2,-5000\n-9999,4000\n3,-999\n")
    t = data.read_csv(path)
    assert t.values[2, 0] == -9999
    (note,) = t.notes  # in b such numbers are not far from the rest
    assert "-9999 is far from all other values and may mean missing: 1 in 'a'; kept" in note
    with pytest.raises(ValueError, match="some are missing: 1 in 'a', 1 in 'b'"):
        data.read_csv(path, sentinel=-9999)
    t = data.read_csv(path, sentinel=(-9999.0, 5.0), missing="interpolate")
    assert t.values[:, 0].tolist() == [1, 2, 2.5, 3]
    assert "-9999 was read as missing: 1 in 'a', 1 in 'b'" in t.notes[0]
    assert "5 was read as missing: none found" in t.notes[1]


def test_uneven_times_are_reported(tmp_path):
    def notes(*times):
        return data.read_csv(table(tmp_path, "date,a\n" + "".join(f"{t},1\n" for t in times))).notes

    days = [f"2020-01-0{i}" for i in range(1, 6)]
    assert notes(*days) == ()
    assert "1 of 4 time steps differ from the usual 86400 s" in notes(*days[:4], "2020-01-07")[0]
    assert "repeat or go back: 2020-01-02 follows 2020-01-05" in notes(*days, days[1])[0]


def test_windows_follow_the_protocol():
    values = torch.arange(200.0).view(100, 2) ** 2
    t = Table(values, ("a", "b"))
    train, val, test = data.windows(t, look_back=6, horizon=3)
    assert (len(train), len(val), len(test)) == (70 - 8, 10 - 2, 20 - 2)
    assert train.shape == val.shape == (6, 2) and train.columns == ("a", "b")
    mean, std = values[:70].mean(0), values[:70].std(0, correction=0)
    for part, start in ((train, 0), (val, 64), (test, 74)):
        last = len(part) - 1
        x, y = part.batch(rows(last, 0))
        assert x.dtype == y.dtype == torch.float32 and y.shape == (2, 3, 2)
        whole = torch.cat([x, y], 1).double() * std + mean
        assert torch.allclose(whole[1], values[start : start + 9], rtol=1e-5, atol=1e-2)
        assert torch.allclose(whole[0], values[start + last : start + last + 9], rtol=1e-5)
    assert torch.allclose(train.mean.double(), mean) and torch.allclose(train.std.double(), std)
    assert train.rows.data_ptr() <= test.rows.data_ptr() < train.rows.data_ptr() + 8 * 100


def test_bad_windows_get_a_sentence():
    many = torch.zeros(10, 2, dtype=torch.float32)
    with pytest.raises(ValueError, match="expected float32 rows"):
        Windows(many.double(), 2, 2)
    with pytest.raises(ValueError, match="of 1 or more, got 0 and 2"):
        Windows(many, 0, 2)
    with pytest.raises(ValueError, match="expected 11 or more rows"):
        Windows(many, 8, 3)
    with pytest.raises(ValueError, match=r"mean and std of shape \(2,\)"):
        Windows(many, 2, 2, torch.zeros(3))
    with pytest.raises(ValueError, match="expected 2 column names, got 1"):
        Windows(many, 2, 2, columns=["a"])
    with pytest.raises(ValueError, match="expected rows 0 to 6, got 7 to 7"):
        Windows(many, 2, 2).batch(rows(7))
    with pytest.raises(ValueError, match="100 rows split 70/10/20 are too few for look_back=96"):
        data.windows(Table(torch.zeros(100, 1), ("a",)))
    with pytest.raises(ValueError, match=r"expected float64 values of shape \(100, 2\)"):
        Table(torch.zeros(100, 1), ("a", "b"))


def test_a_csv_of_ones_own(tmp_path):
    lines = "".join(f"2020-01-01 {i // 60:02d}:{i % 60:02d},{i},0.1,-9999\n" for i in range(200))
    path = table(tmp_path, "date,rising,flat,absent\n" + lines, "mine.csv.gz")
    d = data.load(str(path), look_back=5, horizon=2)
    assert d.name == "mine.csv.gz" and d.train.shape == (5, 3) and len(d.test) == 39
    assert d.train.std[1] == 1 and d.test.rows[:, 1].abs().max() < 1e-6
    assert "200 rows of 3 channels" in d.notes[0] and "-9999" in d.notes[1]
    assert "constant over the training rows: flat, absent" in d.notes[-1]


def test_the_real_weather_has_the_published_windows():
    root = real("weather", "weather.csv.gz")
    d = data.load("weather", root)
    assert d.train.shape == (96, 21) and len(d.test) == 10444 and len(d.train) == 36696
    assert d.train.columns[0] == "p (mbar)" and d.train.columns[-1] == "OT"
    assert any("-9999" in note and "50 in 'OT'" in note for note in d.notes)
    scaled = d.train.rows
    assert scaled.mean(0).abs().max() < 1e-3 and (scaled.std(0) - 1).abs().max() < 1e-3
    t = data.read_csv(root / "weather" / "weather.csv.gz")
    for horizon, count in ((192, 10348), (336, 10204), (720, 9820)):
        assert len(data.windows(t, 96, horizon)[2]) == count
    x, y = d.test.batch(rows(0))
    first = (t.values[len(t.values) - 10539] - d.test.mean) / d.test.std
    assert torch.allclose(y[0, 0].double(), first, atol=1e-4) and x.shape == (1, 96, 21)


def test_another_table_under_the_name_of_the_benchmark_is_refused(tmp_path):
    (tmp_path / "weather").mkdir()
    table(tmp_path / "weather", "date,a\n" + "1,2\n" * 2000, "weather.csv")
    with pytest.raises(ValueError, match="expected 52,696 rows of 21 channels, found 2,000 of 1"):
        data.load("weather", tmp_path)


# -- downloads ---------------------------------------------------------------------------------


@pytest.fixture
def server():
    """A web server of a dict path → (bytes, claimed length or None)."""
    pages: dict[str, tuple[bytes, int | None]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path not in pages:
                self.send_error(404)
                return
            content, claimed = pages[self.path]
            self.send_response(200)
            if claimed is not None:
                self.send_header("Content-Length", str(claimed))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.pages = pages
        http.url = f"http://127.0.0.1:{http.server_port}/"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield http
        http.shutdown()
        thread.join()


def closed_port() -> str:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}/"


def serve_mnist(server, folder: Path) -> None:
    """Move the packed files of a folder to the server."""
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        server.pages[f"/{path.name}"] = (content, len(content))
        path.unlink()


def test_mnist_is_fetched_checked_and_then_loads(server, small_mnist, monkeypatch):
    serve_mnist(server, small_mnist)
    small_mnist.rmdir()
    monkeypatch.setattr(mnist, "MIRRORS", (closed_port(), server.url + "nowhere/", server.url))
    seen = []
    assert data.fetch("mnist", progress=lambda *a: seen.append(a)) == small_mnist
    size = len(server.pages["/train-images-idx3-ubyte.gz"][0])
    assert seen[0] == ("train-images-idx3-ubyte.gz", size, size) and len(seen) == 4
    assert len(data.load("mnist").train) == 10
    server.pages.clear()
    data.fetch("mnist")  # all there: nothing is asked for


def test_fetch_refuses_what_is_not_the_file(server, small_mnist, monkeypatch):
    serve_mnist(server, small_mnist)
    monkeypatch.setattr(mnist, "MIRRORS", (server.url,))
    name = "/train-images-idx3-ubyte.gz"
    content = server.pages[name][0]
    other = gzip.compress(idx(np.ones((20, 28, 28))))
    md5 = mnist.FILES["train-images-idx3-ubyte"].md5
    for page, error, said in [
        ((other, len(other)), ValueError, rf"fetch: from http.*expected md5 {md5} .*found"),
        ((b"<html>", 6), ValueError, "expected an intact gzip"),
        ((content[:-100], None), ValueError, "expected a whole gzip, but it ends early"),
        ((content[:-100], len(content)), ConnectionError, r"broke off after .* of .* bytes"),
    ]:
        server.pages[name] = page
        with pytest.raises(error, match=said) as caught:
            data.fetch("mnist")
        assert f"put it in {small_mnist}" in str(caught.value)
        assert list(small_mnist.iterdir()) == []


def test_fetch_without_a_network_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "MIRRORS", (closed_port(),))
    with pytest.raises(ConnectionError, match=r"could not reach http.*refused") as caught:
        data.fetch("mnist", tmp_path)
    said = f"Get train-images-idx3-ubyte.gz by other means and put it in {tmp_path / 'mnist'}."
    assert said in str(caught.value)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_fetch_takes_care_of_old_files(server, small_mnist, monkeypatch):
    monkeypatch.setattr(mnist, "MIRRORS", (server.url,))
    path = small_mnist / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte.gz: expected a whole gzip"):
        data.fetch("mnist")
    assert path.exists()  # the user's file is for the user to delete


def test_a_stopped_download_leaves_nothing(server, tmp_path):
    server.pages["/big"] = (bytes(1 << 20), 1 << 20)

    def stop(file, done, total):
        assert not (tmp_path / "big").exists() and (tmp_path / "big.part").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.download([server.url + "big"], tmp_path / "big", progress=stop)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"fetch: cannot write .*--data-root"):
        files.download([server.url + "big"], tmp_path / "file" / "big")


def test_dsprites_and_weather_are_fetched_and_checked(server, small_dsprites, monkeypatch):
    path, _ = small_dsprites
    content = path.read_bytes()
    path.unlink()
    monkeypatch.setattr(dsprites, "URL", server.url + "sprites")
    server.pages["/sprites"] = (content[:-50], None)
    with pytest.raises(ValueError, match="expected a whole zip"):
        data.fetch("dsprites")
    server.pages["/sprites"] = (content, len(content))
    assert data.fetch("dsprites") == path.parent and path.read_bytes() == content

    monkeypatch.setattr(tables, "WEATHER_URL", server.url + "weather.csv")
    monkeypatch.setattr(tables, "WEATHER_SHAPE", (300, 2))
    for text, said in [
        ("date,a,b\n" + "1,2,3\n" * 299, "expected 300 rows of 2 channels, found 299 of 2"),
        ("<html>\n<p>sorry", "expected the weather table, but"),
    ]:
        server.pages["/weather.csv"] = (text.encode(), len(text))
        with pytest.raises(ValueError, match=said):
            data.fetch("weather")
    text = "date,a,b\n" + "1,2,3\n" * 300
    server.pages["/weather.csv"] = (text.encode(), len(text))
    folder = data.fetch("weather")
    assert [p.name for p in folder.iterdir()] == ["weather.csv"]
    assert len(data.load("weather", look_back=10, horizon=5).test) == 56


# -- pictures for a trained model ----------------------------------------------------------------


def test_pictures_are_brought_to_the_shape_of_a_model_with_a_note(tmp_path):
    grey, colour, small = tmp_path / "grey.png", tmp_path / "colour.jpg", tmp_path / "small.png"
    Image.new("L", (32, 32), 128).save(grey)
    Image.new("RGB", (80, 40), "red").save(colour)
    Image.new("L", (28, 28), 255).save(small)
    x, notes = data.read_images([grey, colour, small], (1, 32, 32), pad=28)
    assert x.shape == (3, 1, 32, 32) and x.dtype == torch.float32
    assert torch.allclose(x[0], torch.tensor(128 / 255, dtype=torch.float32))
    assert x[2, 0, :2].abs().sum() == 0 and x[2, 0, 2:30, 2:30].min() == 1  # a border, not resized
    assert notes == [
        f"{colour}: converted, to grey and its centre square from 40 to 32 pixels a side",
        f"{small}: converted, a zero border to 32×32",
    ]
    x, _ = data.read_images([grey], (3, 16, 16))
    assert x.shape == (1, 3, 16, 16)


def test_pictures_that_cannot_be_read_are_named(tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken.png: expected a readable image"):
        data.read_images([broken], (1, 8, 8))
    with pytest.raises(ValueError, match="there is no such file"):
        data.read_images([tmp_path / "nowhere.png"], (1, 8, 8))
