"""The ladder of flows: each row is one change, and the table is what the file says."""

import json

import pytest
import torch

from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan
from paper import ladder
from paper.experiment import FOLDER


def model_of(name):
    row = ladder.ROWS[name]
    plan = make_plan("flow", preset=row.preset, flags={"model": row.model})
    return plan.app.Config(**plan.model).model_dump()


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("paper", "prediction", {"core"}),
        ("autoencoder", "preconditioned", {"precondition"}),
        ("preconditioned", "matching", {"noise_likelihood"}),
    ],
)
def test_a_row_changes_one_thing(before, after, changed):
    one, two = model_of(before), model_of(after)
    assert {key for key in one if one[key] != two[key]} == changed


def test_every_row_can_be_trained_or_is_shipped():
    for name, row in ladder.ROWS.items():
        assert row.run or model_of(name)["spaces"] != "noise", name
        assert row.change and (row.data["name"] == "celeba") == name.endswith("-faces")


def test_the_table_has_the_rows_that_were_measured():
    found = json.loads((FOLDER / "ladder.json").read_text())
    text = ladder.ladder_table()
    for name, row in found.items():
        if name != "machine":
            assert row["change"] in text and f"{row['fid']['one step (1000 of rk4)']:.3g}" in text
            assert (FOLDER.parent / "docs" / "images" / f"ladder-{name}.png").exists()


def test_the_reasons_are_what_they_are_by_construction(tmp_path):
    """The loss is the same for a Gaussian of the same moments, and a velocity leaves most of B."""
    torch.set_default_dtype(torch.float32)
    model = {"hidden": 4, "blocks": 1, "rank": 2, "distance": "mse"}
    flags = {"model": model, "training": {"steps": 30, "validate_every": 0, "tensorboard": False}}
    execute(make_plan("flow", preset="paper", flags=flags), tmp_path / "run", progress=False)
    why = ladder.explain(tmp_path / "run", samples=1200)
    assert why["loss_of_data"] == pytest.approx(why["loss_of_a_gaussian"], rel=0.1)
    assert why["directions"] == 64 and why["directions_left_as_they_are"] >= 50
