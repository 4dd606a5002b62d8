"""Reports: what is on the page is what lies in the folder."""

import base64
import html
import io
import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import linearizer as lz
from conftest import PATIENCE, type_words
from linearizer.apps.registry import BUILT_IN, find_app
from linearizer.cli import app
from linearizer.report import runs as reporting
from linearizer.report.pages import Curves, Picture, Table, Text, page
from linearizer.runs.algebra import certify_run
from linearizer.runs.plan import make_plan
from linearizer.runs.store import SHIPPED, find, models
from linearizer.training.checkpoint import read_config
from linearizer.training.loop import Training

SMALL = ("--steps", 20, "--blocks", 2, "--hidden", 16, "--batch", 32, "--log-every", 1,
         "--validate-every", 10, "--no-tensorboard")  # fmt: skip


def spawn(*words):
    return subprocess.run([sys.executable, "-m", "linearizer.cli", *map(str, words)],
                          capture_output=True, text=True, timeout=PATIENCE)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that tests copy and none changes."""
    run = tmp_path_factory.mktemp("reports") / "a <b> & c"
    done = spawn("train", "attributes", "--data", "digits", "--out", run, *SMALL)
    assert done.returncode == 0, done.stderr
    assert f"open {run / 'report.html'}" in done.stdout and "no report" not in done.stderr
    return run


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / trained.name)


def text_of(path):
    return path.read_text(encoding="utf-8")


# -- pages ---------------------------------------------------------------------------------


def curve(made):
    """The places of the first line of the first figure, in its own units."""
    path = re.search(r'<g id="[\w-]*curve-0">.*?<path d="([^"]+)"', made, re.S).group(1)
    numbers = [float(word) for word in path.split() if word not in "ML"]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_page_escapes_what_it_is_given():
    bad = '<script>alert("x")</script>'
    made = page(bad, [Text(bad, bad), Text(bad, plain=True), Table((bad,), [(bad,)]),
                      Curves(bad, {bad: [(0, 1), (1, 2)]}, bad)])  # fmt: skip
    assert "<script" not in made and made.count(html.escape(bad)) >= 9
    assert made.count("&lt;script&gt;alert") >= 11  # the legend and the axis leave quotes


def test_curves_leave_out_what_cannot_be_drawn():
    nan, inf = float("nan"), float("inf")
    made = page("x", [Curves("c.", {"a": [(0, 1.0), (1, nan), (2, inf), (3, 2.0)], "b": []})])
    assert len(curve(made)) == 2 and "nan" not in made and "inf" not in made
    assert "Nothing that can be drawn" in page("x", [Curves("c.", {"a": [(0, nan)]})])
    flat = page("x", [Curves("c.", {"a": [(1, 3.0)]})])  # one point, no extent
    assert len(curve(flat)) == 1 and "<use" in flat and "nan" not in flat


def test_curves_keep_their_ends_and_take_a_logarithm_over_decades():
    line = [(i, 10 ** (-i / 500)) for i in range(2001)]
    made = page("x", [Curves("c.", {"a": line})])
    places = curve(made)
    assert len(places) == 400 and "logarithmic" in made
    (x0, y0), (x1, y1) = places[0], places[-1]
    assert x0 < x1 and y0 < y1  # down the page
    assert abs(places[200][1] - (y0 + y1) / 2) < 1  # straight, on that scale


def test_figures_of_one_page_share_no_id_and_need_nothing_from_elsewhere():
    lines = {"loss": [(i, 1 / (i + 1)) for i in range(100)], "$\\frac$ _x": [(0, 1), (9, 2)]}
    made = page("x", [Text("t"), Curves("a.", lines), Curves("b.", lines), Curves("a.", lines)])
    assert made.count("<svg") == 3 and made.count('role="img"') == 3
    ids = re.findall(r'\bid="([^"]+)"', made)
    assert len(ids) > 30 and len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', made)) <= set(ids)
    assert not re.search(r'https?:|href="(?!#)|url\((?!#)|@import|<image|<metadata', made)
    assert "currentColor" in made and made == page(
        "x", [Text("t"), Curves("a.", lines), Curves("b.", lines), Curves("a.", lines)]
    )
    # Words are words, to be searched and read aloud; what is not text is in a line's own colour.
    assert "$\\frac$ _x (2)</text>" in made and ">loss (0.01)</text>" in made
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", made))
    assert colours <= {"none", "currentColor", "#0b84d8", "#e0592a"}


# -- a run ---------------------------------------------------------------------------------


def test_a_run_has_its_settings_laws_pictures_and_command(run):
    made = text_of(run / "report.html")
    config = read_config(run)
    for section in ("data", "model", "training"):
        for key in config[section]:
            assert f"<td>{section}.{key}</td>" in made, key
    assert "<td>training.steps</td><td>20</td>" in made
    assert "f(x) = g_y⁻¹(A g_x(x))" in made and "20 of 20" in made
    assert "a &lt;b&gt; &amp; c" in made and "<b>" not in made
    assert not re.search(r"https?://|//www|src=\"(?!data:)|<script|<link|@import|url\((?!#)", made)
    for data in re.findall(r'src="data:image/png;base64,([^"]+)"', made):
        image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
        image.load()
        assert image.format == "PNG"
    assert 'alt="step-000020.png"' in made and "step-000010" not in made
    assert "prefers-color-scheme" in made or "color-scheme: light dark" in made


def test_the_laws_are_those_of_certify(run):
    made = text_of(run / "report.html")
    torch.set_default_dtype(torch.float32)
    certificate = certify_run(run, reporting.POINTS, "float64", None)
    rows = re.findall(r"<tr><td>([^<]*)</td><td>([^<]*)</td><td>([^<]*)</td>"
                      r"<td>[^<]*</td><td>(pass|FAIL)</td>",
                      made)  # fmt: skip
    assert [(a, html.unescape(b)) for a, b, _, _ in rows] == [
        (law.name, law.formula) for law in certificate.laws]  # fmt: skip
    for (_, _, shown, _), law in zip(rows, certificate.laws, strict=True):
        assert float(shown) == pytest.approx(law.error, rel=0.5, abs=1e-12)


def test_its_command_gives_the_same_settings(run, tmp_path):
    command = reporting.command_of(read_config(run))
    made = text_of(run / "report.html")
    assert html.escape(command) in made
    words = shlex.split(command)
    assert words[:3] == ["linearizer", "train", "attributes"] and len(words) < 20
    again = tmp_path / "again"
    done = type_words(*words[1:], "--out", again, "--quiet")
    assert done.returncode == 0 and done.stderr == ""
    assert read_config(again) == read_config(run)
    ours, theirs = ((f / "weights.safetensors").read_bytes() for f in (run, again))
    assert ours == theirs


@pytest.mark.parametrize("name", models())
def test_commands_of_shipped_models_plan_what_they_are(name):
    config = read_config(find(name))
    words = shlex.split(reporting.command_of(config))
    assert words[:3] == ["linearizer", "train", config["app"]]
    assert len(words) <= 12, words
    app = find_app(config["app"])
    kinds = {"data": app.kind.Settings, "model": app.Config, "training": Training}
    flags = {"data": {}, "model": {}, "training": {}}
    preset = None
    rest = words[3:]
    while rest:
        key = rest.pop(0).removeprefix("--")
        if key == "preset":
            preset = rest.pop(0)
            continue
        word = "name" if key == "data" else key.removeprefix("no-").replace("-", "_")
        section = next(s for s, kind in kinds.items() if word in kind.model_fields)
        switch = not rest or rest[0].startswith("--")
        flags[section][word] = not key.startswith("no-") if switch else rest.pop(0)
    plan = make_plan(config["app"], preset=preset, flags=flags)
    now = plan.training.model_dump(mode="json")
    assert {k: now[k] for k in config["training"]} == config["training"]
    model = app.Config(**plan.model).model_dump(mode="json")
    assert {k: model[k] for k in config["model"] if k not in app.decided} == {
        k: v for k, v in config["model"].items() if k not in app.decided}  # fmt: skip
    assert plan.data.model_dump(mode="json").items() >= config["data"].items()


def test_every_app_has_a_formula():
    for name in BUILT_IN:
        assert re.match(r"(f\(x\)|x\(t\)) = .*g.?.?⁻¹", find_app(name).formula), name


NULLS = '{"step": 3, "loss": null, "validation": {"accuracy": null}}'


@pytest.mark.parametrize("metrics", ["", "{", '{"step": 1', "[]\n\x00\n", None, NULLS])
def test_broken_and_empty_metrics_are_no_hindrance(run, metrics):
    path = run / "metrics.jsonl"
    path.unlink() if metrics is None else path.write_text(metrics)
    result = reporting.write_run_report(run)
    assert result["problems"] == [] and "Every law, measured" in text_of(run / "report.html")
    if metrics != NULLS:
        assert "none yet" in text_of(run / "report.html") and result["step"] == 0


def test_a_run_without_pictures_or_with_broken_ones(run):
    for path in (run / "samples").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    result = reporting.write_run_report(run)
    assert result["problems"] == ["step-000020.png: not a whole PNG"]
    assert "<img" not in text_of(run / "report.html")
    shutil.rmtree(run / "samples")
    assert reporting.write_run_report(run)["problems"] == []
    assert "<img" not in text_of(run / "report.html")


def test_a_run_without_weights_is_told_as_far_as_it_is(run):
    (run / "weights.safetensors").unlink()
    rows = text_of(run / "metrics.jsonl").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(rows[:8]) + rows[8][:9])
    result = reporting.write_run_report(run)
    made = text_of(run / "report.html")
    assert result["step"] == 7 and "7 of 20, not finished" in made
    assert "no weights yet" in made and result["worst_law"] is None


def test_evaluations_in_the_run_are_told(run):
    reporting.write_run_report(run)
    assert "Not measured yet: linearizer evaluate" in text_of(run / "report.html")
    folder = run / "evaluation"
    folder.mkdir()
    row = {"run": "x", "data": {"name": "digits", "test_samples": 297, "notes": []},
           "linearizer": {"accuracy": 0.9}, "majority": {"accuracy": 0.1},
           "files": ["/somewhere/attributes.json"]}  # fmt: skip
    (folder / "attributes.json").write_text(json.dumps(row))
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[]")  # not an evaluation
    result = reporting.write_run_report(run)
    made = text_of(run / "report.html")
    assert "<h2>Evaluation: linearizer</h2>" in made and "<td>0.9</td>" in made
    assert "Not measured yet" not in made and "/somewhere" not in made
    assert [p.split(":")[0] for p in result["problems"]] == ["broken.json", "list.json"]


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), RuntimeError("no room on the disk")])
def test_a_result_is_told_before_its_report(problem, tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)

    def fails(*arguments, **options):
        raise problem

    monkeypatch.setattr(reporting, "write_run_report", fails)
    for words in ((), ("--json",)):
        run = tmp_path / f"run{len(words)}"
        done = CliRunner().invoke(
            app, ["train", "attributes", "-o", str(run), *map(str, SMALL), "--quiet", *words]
        )
        assert done.exit_code == 0 and "no report: " in done.stderr
        if words:
            assert json.loads(done.stdout)["report"] is None
        else:
            assert "20 steps in" in done.stdout and f"wrote {run}" in done.stdout
            assert "report.html" not in done.stdout


def test_a_report_that_fails_does_not_fail_the_training(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)

    def fails(*arguments, **options):
        raise RuntimeError("no room on the disk")

    monkeypatch.setattr(reporting, "write_run_report", fails)
    words = ["train", "attributes", "-o", tmp_path / "run", *SMALL, "--quiet", "--json"]
    done = CliRunner().invoke(app, [str(w) for w in words])
    assert done.exit_code == 0 and "no report: no room on the disk" in done.stderr
    assert json.loads(done.stdout)["report"] is None and (tmp_path / "run" / "config.json").exists()


def test_writing_a_report_draws_no_number(run):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    weights = (run / "weights.safetensors").read_bytes()
    reporting.write_run_report(run)
    assert bool((torch.get_rng_state() == before).all())
    assert (run / "weights.safetensors").read_bytes() == weights


def test_large_maps_are_measured_after_long_trainings_only(run):
    assert reporting.worth_measuring(run, 1.0)
    config = json.loads(text_of(run / "config.json"))
    config["model"]["shape"] = config.get("plain", {})["shape"] = [3, 128, 128]
    (run / "config.json").write_text(json.dumps(config))
    assert not reporting.worth_measuring(run, 1.0) and reporting.worth_measuring(run, 3600.0)


# -- the command ---------------------------------------------------------------------------


def test_the_command_writes_it_anew(run, tmp_path):
    (run / "report.html").unlink()
    done = type_words("report", run, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["files"] == [str(run / "report.html")] and result["step"] == 20
    assert 0 < result["worst_law"] < 1e-6 and "accuracy" in result["metrics"]
    assert (run / "report.html").exists()
    elsewhere = tmp_path / "new" / "mine.html"
    assert f"wrote\n  {elsewhere}" in type_words("report", run, "-o", elsewhere).stdout
    assert text_of(elsewhere) == text_of(run / "report.html")
    for words, says in (((run, "-o", run), "expected a file to write, but .* is a folder"),
                        ((tmp_path / "none",), "there is no such run folder or shipped model"),
                        ((tmp_path,), "it has no config.json")):  # fmt: skip
        bad = type_words("report", *words)
        assert bad.returncode == 2 and re.search(says, bad.stderr) and "Trace" not in bad.stderr


def test_a_shipped_model_has_one_too(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LINEARIZER_DATA", str(tmp_path / "none"))
    result = reporting.write_run_report("mnist-attributes")  # its data are not here
    assert result["files"] == ["runs/mnist-attributes-report.html"] and result["problems"] == []
    made = text_of(tmp_path / "runs" / "mnist-attributes-report.html")
    assert "points g⁻¹(z) with normal z" in made and "--preset mnist" in made
    assert "linearizer evaluate mnist-attributes" in made
    assert not (SHIPPED / "mnist-attributes" / "report.html").exists()


def test_a_linearizer_that_was_saved_by_itself_has_one(tmp_path):
    X = lz.Space(lz.bijections.mlp(4))
    lz.save(lz.Linearizer(X, lz.operators.Dense(torch.randn(4, 4)), X), tmp_path / "mine")
    result = reporting.write_run_report(tmp_path / "mine")
    made = text_of(tmp_path / "mine" / "report.html")
    assert result["problems"] == [] and 0 < result["worst_law"] < 1e-8 and result["app"] is None
    assert "4 points g⁻¹(z) with normal z" in made and "a Linearizer: mine</h1>" in made
    assert "The largest singular values of the core, 4 × 4." in made


# -- evaluations ---------------------------------------------------------------------------


def test_an_evaluation_is_a_page_of_its_numbers_and_pictures(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    result = {
        "run": "mine", "rank": 7, "held_out": True, "missing": None, "few": [1, 2.5],
        "errors": {"ours": {"mse": 0.12345, "n": 3}, "last value": {"mse": 1.5, "bad": "<x>"}},
        "mse_by_step": {"ours": [0.1 * i for i in range(40)]},
        "deep": {"a": {"b": {"c": 1.0}}}, "empty": {},
        "files": [str(tmp_path / n) for n in ("forecast.json", "good.png", "bad.png")],
    }  # fmt: skip
    (tmp_path / "forecast.json").write_text(json.dumps(result))
    done = reporting.write_evaluation_report(result, "linearizer evaluate 'a b'")
    assert done["files"][-1] == str(tmp_path / "report.html") and done["rank"] == 7
    made = text_of(tmp_path / "report.html")
    assert made.count("<img") == 1 and "bad.png: not a whole PNG" in made
    assert "<td>ours</td><td>0.1235</td><td>3</td><td></td>" in made and "&lt;x&gt;" in made
    assert len(curve(made)) == 40 and "1, 2.5" in made
    assert "linearizer evaluate &#x27;a b&#x27;" in made and "http" not in made


def test_an_evaluation_in_the_folder_of_a_run_leaves_its_report(run):
    before = text_of(run / "report.html")
    result = {"run": "x", "rank": 7, "files": [str(run / "forecast.json")]}
    done = reporting.write_evaluation_report(result)
    assert done["files"][-1] == str(run / "forecast-report.html")
    assert text_of(run / "report.html") == before and "rank" in text_of(
        run / "forecast-report.html")  # fmt: skip


def test_evaluate_writes_it(run, tmp_path):
    done = type_words("evaluate", run, "-o", tmp_path / "e", "--json")
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    assert files[-1] == str(tmp_path / "e" / "report.html")
    made = text_of(tmp_path / "e" / "report.html")
    assert html.escape(f"linearizer evaluate {shlex.quote(str(run))}") in made
    found = json.loads((tmp_path / "e" / "attributes.json").read_text())
    shown = found.get("linearizer", found)["accuracy"]
    assert f"<td>{shown:.4g}</td>" in made


def test_pictures_are_embedded_whole(tmp_path):
    Image.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "p.png")
    made = page("x", [Picture(tmp_path / "p.png", 'a "b"')])
    data = base64.b64decode(re.search(r"base64,([^\"]+)", made).group(1))
    assert data == (tmp_path / "p.png").read_bytes() and 'alt="a &quot;b&quot;"' in made
