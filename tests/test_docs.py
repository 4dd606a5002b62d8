"""What the documents say is so."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_documents_quote_the_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import readme_table

    hint = "run python benchmarks/readme_table.py"
    assert readme_table.table() in (ROOT / "README.md").read_text(), hint
    assert readme_table.loop_table() in (ROOT / "docs" / "training.md").read_text(), hint
    flow = (ROOT / "docs" / "flow.md").read_text()
    for part in (readme_table.flow_table, readme_table.unet_table, readme_table.collapse_table):
        assert part() in flow, hint
    projector = (ROOT / "docs" / "projector.md").read_text()
    assert readme_table.projector_table() in projector, hint
    assert readme_table.weather_rows() in (ROOT / "docs" / "forecast.md").read_text(), hint
    dynamics = (ROOT / "docs" / "dynamics.md").read_text()
    assert readme_table.dynamics_table() in dynamics, hint
    attributes = (ROOT / "docs" / "attributes.md").read_text()
    assert readme_table.attributes_table() in attributes, hint
    assert readme_table.disentanglement_table() in (ROOT / "docs" / "distill.md").read_text(), hint
    sys.modules.pop("common", None)


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda p: p.name
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_public_name_is_documented():
    import linearizer as lz

    nouns = (ROOT / "docs" / "nouns.md").read_text()
    for name in lz.operators.__all__:
        assert getattr(lz.operators, name).__doc__ and (name in nouns or name in {"SVD", "Eig"}), (
            name
        )
    for name in lz.bijections.__all__:
        assert getattr(lz.bijections, name).__doc__, name
    for method in (n for n in dir(lz.Linearizer) if n in {*vars(lz.Linearizer)} and n[0] != "_"):
        assert method == "forward" or f"f.{method}" in nouns, method
    for method in (n for n in vars(lz.Space) if n[0] != "_"):
        assert f"`{method}" in nouns or f"{method}" in {
            "shape", "dim", "coordinates", "points", "extra_repr",
            *re.findall(r"`(\w+)[`(]", nouns),
        }, method  # fmt: skip
