"""The page of the paper's numbers and ours: a function of measured JSON."""

import copy
import json
import re
from pathlib import Path

import pytest

from paper import claims, pages
from paper.attributes import attributes_claims
from paper.claims import APART, BETTER, EQUAL, MISSING, SILENT, WORSE, judge, spread
from paper.distill import distill_claims
from paper.flow import flow_claims
from paper.style import style_claims
from paper.weather import weather_claims

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def found():
    return pages.read_folder(BENCHMARKS)


def rows_of(text, section):
    part = text.split(f"## {section}")[1].split("\n## ")[0]
    return [line.split(" | ") for line in part.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize(
    ("ours", "paper", "tolerance", "less", "verdict"),
    [
        (2.0, 1.0, 0.0, False, BETTER), (2.0, 1.0, 0.0, True, WORSE), (1.0, 1.0, 0.0, True, EQUAL),
        (0.1674, 0.167, 0.0005, True, EQUAL), (0.1676, 0.167, 0.0005, True, WORSE),
    ],
)  # fmt: skip
def test_verdicts(ours, paper, tolerance, less, verdict):
    assert judge(ours, paper, tolerance, less) == verdict


def test_several_seeds_have_a_deviation():
    assert spread(0.5) == "0.500" and spread([0.5, None]) == "0.500"
    assert spread([0.876, 0.002], ".1%") == "87.6% ± 0.2%"


def test_every_number_of_the_paper_is_on_the_page(found):
    text = pages.make_page(found)
    printed = {
        "One-step": ["3e-04", "32.4", "0.006", "31.6", "0.008", "32.9", "0.007", "33.4", "405",
                     "152", "127", "131", "123"],
        "Distilled": ["0.28 ± 0.03 / 0.02 ± 0.01 / 0.49 ± 0.02 / 0.27 ± 0.01 / 0.94 ± 0.00",
                      "0.29 ± 0.03 / 0.02 ± 0.00 / 0.49 ± 0.01 / 0.27 ± 0.01 / 0.93 ± 0.01",
                      "0.33 ± 0.01 / 0.06 ± 0.01 / 0.64 ± 0.01 / 0.51 ± 0.01 / 0.94 ± 0.00",
                      "0.35 ± 0.03 / 0.05 ± 0.01 / 0.64 ± 0.01 / 0.50 ± 0.00 / 0.94 ± 0.00",
                      "0.59 ± 0.05 / 0.23 ± 0.01 / 0.83 ± 0.02 / 0.71 ± 0.00 / 0.95 ± 0.00",
                      "0.69 ± 0.05 / 0.24 ± 0.01 / 0.80 ± 0.00 / 0.71 ± 0.00 / 0.95 ± 0.00"],
        "Attributes": ["87.6%", "86.1%"],
        "Weather": ["0.167", "0.224", "0.257", "0.368", "0.159", "0.211", "0.241", "0.334",
                    "0.247 / 0.321 / 0.341 / 0.411", "+0.008 / +0.013 / +0.016 / +0.034"],
    }  # fmt: skip
    for section, numbers in printed.items():
        papers = [row[1] for row in rows_of(text, section)]
        for number in numbers:
            assert any(p == number or p.startswith(f"{number} ") for p in papers), number


def test_every_row_has_a_verdict_a_protocol_and_a_command(found):
    for section in pages.make_sections(found):
        assert section.claims
        for claim in section.claims:
            assert claim.verdict in claims.VERDICTS and claim.command, claim
            if claim.verdict in (BETTER, EQUAL, WORSE):
                assert re.match(r"yes|no: \w", claim.protocol), claim
                assert claim.time, claim
            assert (claim.verdict == MISSING) == claim.ours.startswith("not measured here: "), claim


def test_the_page_says_plainly_where_ours_is_worse(found):
    found = copy.deepcopy(found)
    found["weather"]["rows"]["strict"]["96"]["mse"] = 1.0
    text = pages.make_page(found)
    worse = [c.what for s in pages.make_sections(found) for c in s.claims if c.verdict == WORSE]
    assert worse and all(what in text.split("\n## ")[0] for what in worse)


def test_verdicts_follow_the_numbers(found):
    found = copy.deepcopy(found)
    for horizon in found["weather"]["rows"]["strict"].values():
        horizon["mse"] = 1.0
    found["flow"]["mnist-flow"]["one_against_many"]["100"]["mse_float32"] = 1.0
    found["attributes"]["celeba-attributes"]["linearizer"]["accuracy"] = [0.95, 0.01]
    by = {c.what: c for s in pages.make_sections(found) for c in s.claims}
    assert by["weather: 96 steps, MSE"].verdict == WORSE
    every = "weather: 96 / 192 / 336 / 720 steps: MSE less that of PatchTST, as the paper prints it"
    assert by[every].verdict == APART and "below it at 0 of 4" in by[every].ours
    assert by["mnist-flow: one step against 100, mean squared difference"].verdict == WORSE
    faces = by["celeba: mean accuracy over 40 attributes"]
    assert faces.verdict == BETTER and faces.ours.startswith("95.0% ± 1.0%")


def test_no_row_of_a_flow_has_the_protocol_of_the_paper(found):
    """It has another g and core, and what it inverts has another rank."""
    for section in pages.make_sections(found):
        if section.name != "flow":
            continue
        for claim in section.claims:
            assert not claim.protocol.startswith("yes"), claim
            if "inversion" in claim.what or "less that of as many" in claim.what:
                assert claim.verdict == APART, claim
    row = found["flow"]["mnist-flow"]
    row["inversion"]["rank"] = 16
    inverse = [c for c in flow_claims(row) if "inversion" in c.what]
    assert len(inverse) == 2
    for claim in inverse:
        assert claim.verdict == APART and "ours is at the rank of B, 16;" in claim.protocol


def test_another_size_of_images_is_another_protocol(found):
    row = copy.deepcopy(found["attributes"]["celeba-attributes"])
    row["data"].update(test_images=19_962, shape=[3, 64, 64])
    assert attributes_claims(row)[0].protocol.startswith("yes: ")
    for shape, said in (([3, 32, 32], "3×32×32"), (None, "of unknown size")):
        row["data"]["shape"] = shape
        protocol = attributes_claims(row)[0].protocol
        assert protocol.startswith("no: ") and protocol.endswith(
            f"; images {said}, the paper's are 3×64×64")  # fmt: skip
    flow = copy.deepcopy(found["flow"]["mnist-flow"])
    assert not any("images 1×" in c.protocol for c in flow_claims(flow))
    flow["data"]["shape"] = [1, 28, 28]
    assert "images 1×28×28, the paper's are 1×32×32" in flow_claims(flow)[0].protocol


def test_weather_is_the_same_protocol_after_a_whole_training_only(found):
    row = copy.deepcopy(found["weather"])
    by = {c.what: c for c in weather_claims(row)}
    same = by["weather: 96 steps, MSE"]
    assert same.protocol.startswith("yes: look-back 96") and "looks at test rows" in same.protocol
    ridge = by["weather: 96 / 192 / 336 / 720 steps, MSE of the baseline “ridge, per channel”"]
    assert ridge.verdict == SILENT
    assert ridge.ours.startswith(f"{row['rows']['ridge, per channel']['96']['mse']:.3f} / ")
    row["rows"]["strict"]["96"]["steps"] = 60
    by = {c.what: c for c in weather_claims(row)}
    assert by["weather: 96 steps, MSE"].protocol == "no: 60 training steps, the preset's are 300"
    assert by["weather: 192 steps, MSE"].protocol == same.protocol
    row["look_back"] = 336
    assert weather_claims(row)[1].protocol == "no: look-back 336, the paper's is 96"


def test_better_by_another_protocol_is_counted_apart(found):
    text = pages.make_page(found)
    assert "rows of the collapse (appendix F) have its own." in text
    assert (
        "a command of their own (`python -m paper record …`, `python benchmarks/…`) apart:" in text
    )
    assert " apart: `python -m paper flow`." in text
    head, flow = (next(line for line in text.splitlines() if line.startswith(start)).split(" | ")
                  for start in ("| | better", "| One-step flows"))  # fmt: skip
    cells = dict(zip(head[1:], flow[1:], strict=True))
    assert cells["better"] == "–" and int(cells["better by another protocol"]) > 0
    for section in pages.make_sections(found):
        counts = claims.count_verdicts(section.claims)
        assert sum(counts.values()) == len(section.claims)
        better = [c for c in section.claims if c.verdict == BETTER]
        assert counts[BETTER] == sum(c.protocol.startswith("yes") for c in better)


def test_styles_say_how_many_photos_each_figure_is_of(found):
    row = copy.deepcopy(found["style"]["styles"])
    assert row["photos"] == 200

    def protocols():
        return {c.what.split(":")[0].split(" ")[0]: c.protocol for c in style_claims(row)}

    said = protocols()
    assert said["LPIPS"] == "200 held-out photos" and said["blend"].startswith("8 held-out photos")
    assert said["undone"] == "20 held-out photos; the least of the styles' means"
    row["photos"] = 3
    said = protocols()
    assert said["blend"].startswith("3 held-out") and said["undone"].startswith("3 held-out")
    row["held_out"] = False
    assert protocols()["undone"].startswith("its own photo")


def test_scores_of_several_seeds(found):
    found = copy.deepcopy(found)
    table = found["disentanglement"]
    table["seeds"] = 3
    for row in table["rows"].values():
        for column, (mean, std) in row["paper"].items():
            row[column] = [mean, std or 0.001]
    table["data"] = []  # the published images
    section = next(s for s in pages.make_sections(found) if s.name == "distill")
    assert "over 3 seeds" in section.text
    by = {c.what: c for c in section.claims}
    assert by["BetaH"].verdict == EQUAL and by["BetaH"].protocol == "yes: 3 seeds"
    assert by["BetaH"].ours.startswith("0.590 ± 0.050 / 0.230 ± 0.010")
    gap = by["Linearizer-BetaH: largest difference of a score to its teacher's"]
    assert gap.verdict == EQUAL and gap.ours.startswith("0.100 ± 0.071 (FactorVAE)")
    what = "Linearizer-BetaH: largest difference of a score to its teacher's"

    def again():
        (claim,) = (c for c in distill_claims(table) if c.what == what)
        return claim

    table["rows"]["Linearizer-BetaH"]["factor_vae"] = [0.64, 0.05]  # 0.05 away, the paper 0.10
    assert again().verdict == EQUAL  # within 0.01 and the paper's deviation of 0.05
    table["rows"]["Linearizer-BetaH"]["factor_vae"] = [0.60, 0.05]
    assert again().verdict == BETTER and again().protocol == "yes: 3 seeds"
    table["rows"]["BetaH"]["sap"] = [0.5, 0.001]  # a teacher that is not the paper's
    assert again().verdict == APART and again().protocol.startswith("no: its teacher")
    table["rows"]["BetaH"]["sap"] = [0.23, 0.01]
    table["data"] = ["re-rendered dSprites"]
    assert again().verdict == APART and again().protocol.startswith("no: ")


def test_what_is_missing_is_said(found, tmp_path):
    text = pages.make_page({"weather": found["weather"]})
    assert "Not measured yet: `python -m paper flow`." in text
    assert pages.read_folder(tmp_path) == {}
    (tmp_path / "flow.json").write_text("{")
    with pytest.raises(ValueError, match=r"flow\.json: expected JSON"):
        pages.read_folder(tmp_path)


def test_flows_without_lpips_or_features_are_told(found):
    row = copy.deepcopy(found["flow"]["celeba-flow"])
    row["lpips"] = "not measured: no weights"
    for steps in row["one_against_many"].values():
        steps.pop("lpips", None)
    del row["inversion"]["lpips_alex"]
    row["fid"] = {"features": None}
    missing = [c for c in flow_claims(row) if c.verdict == MISSING]
    assert [c.paper for c in missing] == ["0.007", "0.006", "123"]
    row["data"]["name"], row["paper"] = "digits", {}
    claims = flow_claims(row)
    assert {c.verdict for c in claims} == {SILENT} and {c.paper for c in claims} == {"–"}


def test_a_single_evaluation_has_its_claims(found):
    assert pages.claims_of("dynamics", {}) == []
    assert pages.claims_of("distill", {"encoder": "mine", "rows": {}}) == []
    for kind, row in (("flow", found["flow"]["mnist-flow"]), ("weather", found["weather"]),
                      ("projector", found["projector"]["mnist-projector"]),
                      ("style", found["style"]["styles"]),
                      ("attributes", found["attributes"]["celeba-attributes"]),
                      ("distill", found["disentanglement"])):  # fmt: skip
        assert pages.claims_of(kind, json.loads(json.dumps(row))), kind
