"""Laws, spectra and exports of what lies in a folder, with its data and without."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

import linearizer as lz
from linearizer.cli import app
from linearizer.runs.algebra import certify_run, draw_points, export_run, open_map, write_spectrum
from linearizer.runs.store import SHIPPED


@pytest.fixture(autouse=True)
def single_precision():
    torch.set_default_dtype(torch.float32)  # the fixture of all tests puts it back


@pytest.fixture
def bare(tmp_path):
    """A Linearizer from 6 numbers to 4, saved by itself."""
    X, Y = lz.Space(lz.bijections.mlp(6, 2, 16)), lz.Space(lz.bijections.mlp(4, 2, 16))
    return lz.save(lz.Linearizer(X, lz.operators.Dense(torch.randn(4, 6)), Y), tmp_path / "bare")


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_bare_linearizer_has_laws_a_spectrum_and_exports(bare, tmp_path):
    done = command("certify", bare, "-n", 5, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["passed"] and found["points"] == 5 and found["dtype"] == "float64"
    assert "measured on 5 points g⁻¹(z) with normal z" in done.stderr

    f = lz.load(bare)
    done = command("spectrum", bare, "-k", 2, "--json")
    assert done.exit_code == 0, done.output
    spectrum = json.loads(done.stdout)
    assert spectrum["dimensions"] == [4, 6]
    assert spectrum["singular_values"] == pytest.approx(f.operator.svd().S.tolist(), rel=1e-5)
    assert (bare / "spectrum" / "spectrum.png").exists()

    for form, sizes in (("f", (6, 4)), ("pinv", (4, 6)), ("transpose", (4, 6))):
        out = tmp_path / f"{form}.pt2"
        done = command("export", bare, "--format", "torch-export", "--map", form, "-o", out)
        assert done.exit_code == 0, done.output
        assert f"(batch, {sizes[0]}) → (batch, {sizes[1]})" in done.stdout
        assert "checked on 8 points g⁻¹(z)" in done.stderr
    x = draw_points(f, 3)
    assert torch.allclose(torch.export.load(tmp_path / "f.pt2").module()(x), f(x), atol=1e-4)
    done = command("export", bare, "--format", "hub")
    assert done.exit_code != 0


def test_a_space_is_no_map(tmp_path):
    lz.save(lz.Space(lz.bijections.mlp(4)), tmp_path / "space")
    with pytest.raises(ValueError, match="expected a model of an application or a Linearizer"):
        certify_run(tmp_path / "space", 4, "float64", None)
    lz.save(lz.Space(lz.bijections.mlp(4)), tmp_path / "weights", weights_only=True)
    with pytest.raises(ValueError, match="saved without its parts"):
        write_spectrum(tmp_path / "weights", 2)


def test_without_the_data_points_are_drawn_and_a_note_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("LINEARIZER_DATA", str(tmp_path / "none"))
    run = shutil.copytree(SHIPPED / "mnist-attributes", tmp_path / "run")
    notes = []
    certificate = certify_run(run, 3, "float64", None, say=notes.append)
    assert certificate.passed and certificate.points == 3
    assert notes == ["measured on 3 points g⁻¹(z) with normal z, since the data are not here"]
    result = export_run(run, "torch-export", "f", tmp_path / "f.pt2", say=notes.append)
    assert result["max_error"] < 1e-3
    assert notes[1].startswith("checked on 8 points g⁻¹(z)")


def test_a_map_is_opened_in_a_precision_and_draws_no_number(bare):
    before = torch.get_rng_state()
    assert open_map(bare, "float64").f.operator.dtype == torch.float64
    found = open_map("pendulum")
    assert found.run is not None and found.run.app.name == "dynamics"
    assert torch.equal(torch.get_rng_state(), before)
