import importlib.util
from pathlib import Path

import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_random_labels_are_fitted_to_a_thousandth(tmp_path):
    example = load("finite_fit")
    x, y = example.dataset(points=24)  # the figure of the documents has 64
    f, errors = example.fit(x, y, steps=250, polish=150)
    assert errors[0] > 1
    with torch.no_grad():
        assert (f(x) - y).norm(dim=1).max() <= 1e-3
    assert f.certify(x).passed
    example.plot(errors, tmp_path / "error.png")
    assert (tmp_path / "error.png").stat().st_size > 5000


def test_the_algebra_of_a_classifier_is_drawn(tmp_path):
    torch.set_default_dtype(torch.float32)
    result = load("digits_classifier").run(tmp_path / "out", steps=10)
    assert result.numbers["worst_law_float64"] < 1e-8 and result.numbers["rank"] == 10
    names = {"geodesics.png", "null-space.png", "pseudo-inverse.png", "round-trip.png",
             "singular-vectors.png"}  # fmt: skip
    assert names <= {p.name for p in (tmp_path / "out").iterdir()}


def test_a_tutorial_is_drawn_from_its_own_variables(tmp_path, capsys):
    torch.set_default_dtype(torch.float32)
    example = load("tutorial_pictures")
    assert set(example.DRAWN) == {p.stem for p in example.PAGES.glob("[0-9]*.md")}
    example.algebra(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"tutorial-space.png", "tutorial-powers.png"}
    assert "False" not in capsys.readouterr().out
