"""The table of distilled encoders: codes of all sprites, and what is kept of it."""

import json

import pytest
import torch

from linearizer.data import Sprites
from paper import distill
from paper.distill import encode_all

# -- codes of a data set -----------------------------------------------------------------------


class FirstSprites:
    """The first 70 of all sprites."""

    def __len__(self):
        return 70

    def batch(self, index):
        assert int(index.max()) < 70
        return Sprites().batch(index)


def centre(x):
    """Mean column and row of the white pixels, (n, 2)."""
    at = torch.arange(64.0)
    mass = x.double().sum((1, 2, 3))
    return torch.stack([x.sum((1, 2)) @ at.to(x) / mass, x.sum((1, 3)) @ at.to(x) / mass], 1)


def test_codes_are_in_the_order_of_the_data():
    z = encode_all(centre, FirstSprites(), batch=32)
    assert z.shape == (70, 2) and z.dtype == torch.float32
    assert torch.allclose(z, centre(Sprites().batch(torch.arange(70)).x).float())
    x, y = z.unbind(1)
    for start in (0, 32):  # y changes fastest, then x
        assert bool((y[start : start + 32].diff() > 0.5).all())
        assert bool((x[start : start + 32].diff().abs() < 0.1).all())
    assert float(x[32] - x[31]) > 0.5


def test_codes_are_without_gradients():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * 64, 3)).float()
    assert not encode_all(net, FirstSprites()).requires_grad


def test_wrong_encoders_are_named():
    with pytest.raises(ValueError, match=r"codes \(32, k\) of 32 images, got shape \(32, 1, 64"):
        encode_all(lambda x: x, FirstSprites(), batch=32)
    with pytest.raises(ValueError, match=r"codes \(32, k\) of 32 images, got shape \(1, 2\)"):
        encode_all(lambda x: centre(x[:1]), FirstSprites(), batch=32)
    with pytest.raises(ValueError, match=r"codes \(6, 32\) of 6 images, got shape \(6, 6\)"):
        encode_all(lambda x: torch.zeros(len(x), len(x)), FirstSprites(), batch=32)


# -- the table of disentanglement --------------------------------------------------------------


def test_the_table_is_made_of_what_is_kept(tmp_path, data_root):
    if not (data_root / "disentangling_vae").is_dir():
        pytest.skip("the encoders of disentangling_vae are not in the data folder")
    names = distill.TEACHERS
    one = dict.fromkeys(distill.COLUMNS, 0.5)
    facts = {"r2": {"mean": 0.99, "least": 0.97}, "seconds": 60.0, "steps": 9}

    def settings(spec, preset, number=0, steps=None):
        plan = distill._plan(spec, preset, number, steps)
        return distill._digest(plan)

    rows = {name: {str(s): {**one, "sap": 0.1 * s} for s in range(3)} for name in names}
    for name, spec in names.items():
        for kind, preset in distill.KINDS.items():
            row = {**one, **facts, "sap": 0.25 if preset == "dsprites" else 0.15,
                   "settings": settings(spec, preset)}  # fmt: skip
            rows[f"Linearizer-{name}{kind}"] = {str(s): row for s in range(3)}
    (tmp_path / "scores.json").write_text(json.dumps(rows))
    result = distill.measure_table(3, tmp_path, data_root)
    row = result["rows"]["Linearizer-BetaH"]
    assert result["rows"]["BetaH"]["sap"] == [pytest.approx(0.1), pytest.approx(0.1)]
    assert row["within_one_std_of_teacher"] == {
        **dict.fromkeys(distill.COLUMNS, True), "sap": False}  # fmt: skip
    same = result["rows"]["Linearizer-BetaH, same layers"]
    assert all(same["within_one_std_of_teacher"].values()) and same["paper"] == row["paper"]
    assert row["r2"] == 0.99 and row["least_r2_of_an_output"] == 0.97
    assert "| Linearizer-BetaH | 0.500 ± 0.000 (0.69 ± 0.05) | 0.250 ± 0.000" in result["table"]
    kept = distill._Kept(tmp_path / "scores.json")
    other = settings("betah", "dsprites", steps=7)  # of another training: to be made again
    kept.forget("Linearizer-BetaH", [other])
    assert not kept.has("Linearizer-BetaH", 0) and kept.has("Linearizer-VAE", 0)
    kept.forget("Linearizer-VAE", [settings("vae", "dsprites", n) for n in range(3)])
    assert kept.has("Linearizer-VAE", 0) and not kept.has("Linearizer-VAE", 1)
    (tmp_path / "scores.json").write_text("{")
    with pytest.raises(ValueError, match="expected JSON"):
        distill.measure_table(3, tmp_path, data_root)
