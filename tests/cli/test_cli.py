"""The command line, through real subprocesses."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import linearizer as lz
from conftest import PATIENCE, type_words
from linearizer.training.checkpoint import read_metrics
from linearizer.training.loop import Training

SMALL = ("--steps", 30, "--blocks", 2, "--hidden", 16, "--batch", 32, "--log-every", 1,
         "--checkpoint-every", 10, "--validate-every", 10, "--no-tensorboard")  # fmt: skip


def spawn(*arguments, **options):
    """The command in a process of its own, as users have it."""
    return subprocess.run(
        [sys.executable, "-m", "linearizer.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        **options,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that most tests look at and none changes."""
    folder = tmp_path_factory.mktemp("cli") / "runs" / "digits"
    done = spawn("train", "attributes", "--data", "digits", "--out", folder, *SMALL)
    assert done.returncode == 0, done.stderr
    return folder


# -- train, runs, resume -------------------------------------------------------------------


def test_train_writes_a_run_and_says_so(run):
    # 30 steps are no better than a linear probe, which the run then keeps.
    assert {p.name for p in run.iterdir()} - {"trained.safetensors"} == {
        "config.json", "weights.safetensors", "metrics.jsonl", "state", "samples",
        "report.html"}  # fmt: skip
    config = json.loads((run / "config.json").read_text())
    assert config["app"] == "attributes" and config["data"]["name"] == "digits"
    assert config["model"]["shape"] == [1, 8, 8] and config["model"]["blocks"] == 2
    assert config["training"]["steps"] == 30 and config["training"]["rate"] == 2e-3  # the app's
    assert set(config["training"]) == set(Training.model_fields)  # complete
    assert len(list((run / "samples").glob("*.png"))) == 3
    model = lz.load(run)
    assert model()(torch.rand(2, 1, 8, 8, dtype=torch.float32)).shape == (2, 10)


def test_flags_override_the_file_which_overrides_defaults(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(
        'app = "attributes"\n[data]\nname = "digits"\n[model]\nblocks = 1\nhidden = 8\n'
        "[training]\nsteps = 3\nbatch = 16\nrate = 0.01\nvalidate_every = 0\n"
    )
    out = tmp_path / "run"
    done = type_words("train", "attributes", "--config", file, "--batch", 8, "-o", out, "--json",
                      "--quiet")  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    result = json.loads(done.stdout)
    assert result["step"] == 3 and result["stopped"] == "done" and result["run"] == str(out)
    config = json.loads((out / "config.json").read_text())
    assert config["training"]["batch"] == 8 and config["training"]["rate"] == 0.01
    assert config["model"]["blocks"] == 1 and config["model"]["output_blocks"] == 2
    assert list((out / "tensorboard").iterdir())


def test_runs_lists_what_there_is(run, tmp_path):
    done = type_words("runs", run.parent)
    head, row = done.stdout.splitlines()
    assert head.split()[:4] == ["run", "app", "data", "steps"]
    assert "attributes" in row and "digits" in row and "30/30" in row and "accuracy" in row
    (listed,) = json.loads(type_words("runs", run.parent, "--json").stdout)
    assert listed["step"] == 30 and 0 <= listed["value"] <= 1 and listed["metric"] == "accuracy"
    assert "no runs in" in type_words("runs", tmp_path / "none").stdout
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    assert "expected JSON" in type_words("runs", tmp_path).stdout


def test_a_killed_run_goes_on_to_the_same_weights(run, tmp_path):
    """kill -9, then Ctrl-C, then to the end: the weights are those of the uninterrupted run."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "linearizer.cli", "train", "attributes", "-o", str(out),
               *map(str, SMALL), "--resume"]  # fmt: skip
    for number, at in ((signal.SIGKILL, 12), (signal.SIGINT, 22)):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while child.poll() is None:
            rows = read_metrics(out / "metrics.jsonl")
            if max((r["step"] for r in rows), default=0) >= at:
                child.send_signal(number)
                break
            time.sleep(0.005)
        text, err = child.communicate(timeout=PATIENCE)
        if number == signal.SIGKILL:
            assert child.returncode == -signal.SIGKILL
            assert lz.load(out) is not None  # the checkpoint of step 10
        elif child.returncode == 130:  # unless it was done before the signal came
            assert re.search(r"stopped at step \d+ of 30; go on with: linearizer resume", text)
            assert "Traceback" not in err
    done = spawn("resume", out)
    assert done.returncode == 0, done.stderr
    ours, theirs = ((f / "weights.safetensors").read_bytes() for f in (out, run))
    assert ours == theirs


def test_a_run_from_before_a_setting_of_the_data_goes_on(run, tmp_path):
    old = shutil.copytree(run, tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    assert config["data"].pop("skip_broken") is False
    (old / "config.json").write_text(json.dumps(config))
    done = type_words("resume", old)
    assert done.returncode == 0, done.stderr


def test_a_run_is_not_overwritten(run):
    before = (run / "weights.safetensors").read_bytes()
    done = type_words("train", "attributes", "--out", run, *SMALL)
    assert done.returncode == 2 and "holds a run already. Add --resume" in done.stderr
    done = type_words("train", "attributes", "--out", run, *SMALL, "--blocks", 3, "--resume")
    assert done.returncode == 2
    assert "cannot resume, since model.blocks (2 before, 3 now) differs" in done.stderr
    assert (run / "weights.safetensors").read_bytes() == before


def test_nan_is_a_sentence_and_exit_2(tmp_path):
    done = type_words("train", "attributes", "-o", tmp_path / "run", *SMALL, "--rate", 1e8,
                      "--clip", 0, "--warmup", 0)  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    said = r"became NaN or infinite at step \d+\. The last good checkpoint, step 0.*Lower the rate"
    assert re.search(said, done.stderr)


def test_train_on_a_folder_of_images(tmp_path):
    from PIL import Image

    for i in range(40):
        folder = tmp_path / "images" / ("light" if i % 2 else "dark")
        folder.mkdir(parents=True, exist_ok=True)
        grey = (200 if i % 2 else 50) + i
        pixels = torch.randint(0, 40, (10, 12), generator=torch.Generator().manual_seed(i)) + grey
        Image.fromarray(pixels.clamp(0, 255).to(torch.uint8).numpy()).save(folder / f"{i}.png")
    environment = {**os.environ, "LINEARIZER_CACHE": str(tmp_path / "cache")}
    done = type_words("train", "attributes", "--data", tmp_path / "images", "--size", 8, "-o",
                      tmp_path / "run", *SMALL, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    model = lz.load(tmp_path / "run")
    assert model.config.names == ("dark", "light") and model.config.shape == (1, 8, 8)


# -- algebra -------------------------------------------------------------------------------


def test_certify_prints_every_law_and_its_exit_code_tells(run):
    done = type_words("certify", run, "-n", 16)
    assert done.returncode == 0 and done.stdout.count("  pass") >= 31
    assert "16 points, float64" in done.stdout
    done = type_words("certify", run, "--float32", "--json")
    certificate = json.loads(done.stdout)
    assert done.returncode == 0 and certificate["passed"] and certificate["dtype"] == "float32"
    assert certificate["points"] == 64 and certificate["complete"]
    assert {law["verdict"] for law in certificate["laws"]} == {"passed"}
    assert set(certificate["condition"]) == set(certificate["digits"]) == {"X", "Y"}
    done = type_words("certify", run, "--tolerance", "1e-30")
    assert done.returncode == 1 and "FAIL" in done.stdout


def test_spectrum_draws_what_it_says(run, tmp_path):
    from PIL import Image

    done = type_words("spectrum", run, "-k", 4, "-o", tmp_path / "s")
    assert done.returncode == 0 and "core 10 × 64; singular values" in done.stdout
    files = {p.name for p in (tmp_path / "s").iterdir()}
    assert files == {"spectrum.png", "input-singular-vectors.png", "spectrum.json"}
    values = json.loads((tmp_path / "s" / "spectrum.json").read_text())["singular_values"]
    wanted = torch.linalg.svdvals(lz.load(run)().operator.dense())
    assert torch.allclose(torch.tensor(values), wanted.double(), rtol=1e-5)
    for path in (tmp_path / "s").glob("*.png"):
        with Image.open(path) as image:
            low, high = image.convert("L").getextrema()
            assert min(image.size) > 200 and high - low > 200
    assert json.loads(type_words("spectrum", run, "-o", tmp_path / "s", "--json").stdout)


@pytest.mark.parametrize("form", ["f", "pinv"])
def test_export_onnx_runs_in_onnxruntime(run, tmp_path, form):
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "map.onnx"
    done = type_words("export", run, "--format", "onnx", "--map", form, "-o", path)
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout and "largest difference" in done.stdout
    f = lz.load(run)()
    x = lz.data.load("digits").test.batch(torch.arange(5)).x
    with torch.no_grad():
        x, f = (x, f) if form == "f" else (f(x), f.pinv())
        wanted = f(x)
    (y,) = onnxruntime.InferenceSession(path).run(["y"], {"x": x.numpy()})
    assert (torch.from_numpy(y) - wanted).abs().max() < 1e-4


def test_export_torch_program_and_hub_round_trip(run, tmp_path):
    done = type_words("export", run, "--format", "torch-export", "-o", tmp_path / "f.pt2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["max_error"] < 1e-4
    x = torch.rand(3, 1, 8, 8, dtype=torch.float32)
    f = lz.load(run)()
    program = torch.export.load(tmp_path / "f.pt2").module()
    assert torch.allclose(program(x), f(x), atol=1e-4)

    done = type_words("export", run, "--format", "hub", "-o", tmp_path / "hub")
    assert done.returncode == 0, done.stderr
    names = {p.name for p in (tmp_path / "hub").iterdir()}
    assert names == {"config.json", "model.safetensors", "README.md"}
    from linearizer.runs.hub import HubModel

    hub = HubModel.from_pretrained(tmp_path / "hub")
    assert torch.equal(hub.model()(x), f(x))
    card = (tmp_path / "hub" / "README.md").read_text()
    rows = [r["validation"] for r in read_metrics(run / "metrics.jsonl") if "validation" in r]
    best = max(row["accuracy"] for row in rows)
    assert f"| accuracy (validation) | {best:.4g} |" in card
    assert card.startswith("---\nlibrary_name: linearizer\n") and "| steps | 30 |" in card
    hub.save_pretrained(tmp_path / "again")  # and round again
    assert torch.equal(lz.load(tmp_path / "again")()(x), f(x))
    done = type_words("export", run, "--format", "hub", "-o", tmp_path / "hub")
    assert done.returncode == 2 and "new or empty folder" in done.stderr


# -- data ----------------------------------------------------------------------------------


def test_data_lists_the_sets_and_a_missing_one_is_a_sentence(tmp_path):
    done = type_words("data", "--data-root", tmp_path)
    assert done.returncode == 0 and "digits" in done.stdout and str(tmp_path) in done.stdout
    rows = json.loads(type_words("data", "--data-root", tmp_path, "--json").stdout)
    assert {r["name"] for r in rows} >= {"digits", "mnist", "celeba", "dsprites", "weather"}
    done = spawn("train", "attributes", "--data", "mnist", "--data-root", tmp_path,
                 "-o", tmp_path / "run", *SMALL)  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert str(tmp_path / "mnist") in done.stderr and "LINEARIZER_DATA" in done.stderr
    assert not (tmp_path / "run").exists()
    done = type_words("data", "fetch", "celeba", "--data-root", tmp_path)
    assert done.returncode == 2 and "mmlab.ie.cuhk.edu.hk" in done.stderr


# -- bad requests --------------------------------------------------------------------------

BAD = [
    (("trian",), "No such command.*Did you mean .train"),
    (("train", "atributes"), "No such command.*Did you mean .attributes"),
    (("train", "attributes", "--stps", "3"), "No such option.*--steps"),
    (("train", "attributes", "--steps", "0"), "steps should be greater than or equal to 1, got 0"),
    (("train", "attributes", "--steps", "many"), "Invalid value for .--steps.: .*valid integer"),
    (("train", "attributes", "--g", "glo"), "glo"),
    (("train", "attributes", "--data", "digitz"), "digitz.*Did you mean .digits"),
    (("train", "attributes", "--data", "weather.csv"), r"weather\.csv"),
    (("train", "attributes", "--config", "none.toml"), "no such settings file"),
    (("train", "attributes", "--config", "FILE"), "expected TOML"),
    (("train", "attributes", "--config", "TYPO"), r"no setting 'stpes'. Did you mean steps\?"),
    (("train", "attributes", "--config", "TABLE"), r"no table \[trainng\]. Did you mean training"),
    (("train", "attributes", "--config", "OTHER"), "for the app 'flow', not for 'attributes'"),
    (("train", "attributes", "--preset", "papr"), "no preset 'papr'"),
    (("train", "attributes", "--out", "FILE"), "is a file"),
    (("train", "attributes", "--batch", "30", "--accumulate", "4", "-o", "NEW"),
     "30 does not divide into 4 equal parts"),
    (("train", "attributes", "--device", "cuda", "-o", "NEW"), "no CUDA device"),
    (("train", "attributes", "--out", "FULL"), "not empty and holds no run"),
    (("train", "attributes", "--data", ""), "name String should have at least 1 character"),
    (("train", "attributes", "--data", "TABLE.csv", "-o", "NEW"), "holds no labelled images"),
    (("train", "attributes", "--rate", "inf"), "rate should be a finite number"),
    (("train", "attributes", "--seed", "18446744073709551616"), "seed should be less than"),
    (("train", "attributes", "--hidden", "1000000000000", "-o", "NEW"), "not enough memory"),
    (("resume", "none"), "there is no such run folder"),
    (("runs", "FILE"), "expected a folder"),
    (("certify", "runs/none"), "no such run folder or shipped model"),
    (("certify", "RUNN"), r"Did you mean .*digits\?"),
    (("certify", "FILE"), "expected a run folder, got a file"),
    (("certify", "RUN", "-n", "0"), "Invalid value for .-n"),
    (("certify", "RUN", "--tolerance", "-1"), "Invalid value for .--tolerance"),
    (("spectrum", "RUN", "-k", "0"), "Invalid value for .-k"),
    (("export", "RUN", "--format", "onx"), "'onx' is not one of 'onnx'"),
    (("export", "RUN", "--map", "pinnv"), "'pinnv' is not one of 'f', 'pinv'"),
    (("export", "RUN", "--format", "hub", "--map", "pinv"), "--map does not go with it"),
    (("project", "nowhere.png"), r"nowhere\.png: expected an image, but there is no such file"),
    (("project", "mnist-projector"), "expected image files after the run mnist-projector"),
    (("project", "mnist-projektor", "a.png"), "no such run folder or shipped model"),
    (("project", "FULL"), "a folder without a run"),
    (("project", "mnist-flow", "FILE"), "expected a projector, but the run holds flow"),
    (("project", "FILE"), "not an image|cannot identify|expected an image"),
    (("project", "FILE", "--rank", "-1"), "Invalid value for .--rank"),
    (("evaluate", "nowhere"), "no such run folder or shipped model"),
    (("evaluate", "RUN", "--data", "nowhere"), "expected one of digits, mnist"),
    (("evaluate", "RUN", "--out", "FILE"), "expected a folder, but .* is a file"),
    (("--app", "none.py:APP", "runs"), r"none\.py: expected Python code that has an application"),
    (("--app", "FILE", "runs"), r"app: expected FILE\.py:NAME or MODULE:NAME"),
    (("--app", "json:loads", "runs"), r"expected an App .*, got function"),
    (("train", "none.py:APP"), r"none\.py: expected Python code that has an application"),
    (("read", "mnist-flow", "FILE"), "expected a run of attributes or distill"),
    (("imagine", "RUN", "-w", "eleven"), "there is no output 'eleven'. Known: 0, 1"),
    (("edit", "RUN", "FILE", "-w", "3"), "not an image|expected a readable image"),
    (("erase", "RUN", "FILE", "-a", "cat"), "there is no output 'cat'"),
    (("vary", "RUN", "FILE", "--amount", "2"), "Invalid value for .--amount"),
    (("train", "distill", "--teacher", "none.onnx", "--data", "digits"), r"none\.onnx"),
    (("train", "distill", "--teacher", "betahh"), "betahh.*Did you mean .*betah"),
    (("train", "distill", "--teacher", "FILE", "--data", "digits"), "expected"),
    (("data", "fetch", "mnits"), "Did you mean .mnist"),
    (("quickstart", "--out", "FILE"), "needs a folder, but"),
    (("quickstart", "--out", "FILE/below"), "Not a directory|needs a folder"),
    (("quickstart", "--steps", "0"), "Invalid value for .--steps.: .*greater than or equal to 1"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda v: " ".join(v)[:50])
def test_a_bad_request_is_one_sentence_and_exit_2(tmp_path, run, arguments, message):
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "typo").write_text("[training]\nstpes = 3\n")
    (tmp_path / "table").write_text("[trainng]\nsteps = 3\n")
    rows = "".join(f"{i},{i % 7}\n" for i in range(3000))
    (tmp_path / "table.csv").write_text("a,b\n" + rows)
    (tmp_path / "other").write_text('app = "flow"\n')
    places = {"FILE/below": file / "below", "FILE": file, "TYPO": tmp_path / "typo",
              "TABLE": tmp_path / "table", "OTHER": tmp_path / "other", "RUNN": f"{run}s",
              "RUN": run, "NEW": tmp_path / "new", "FULL": tmp_path,
              "TABLE.csv": tmp_path / "table.csv"}  # fmt: skip
    done = type_words(*(places.get(a, a) for a in arguments), cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(message, done.stderr.replace("\n", " ")) and "Traceback" not in done.stderr
    assert file.read_text() == "mine"


def test_a_network_is_distilled_read_and_edited(tmp_path):
    from PIL import Image

    (tmp_path / "mine.py").write_text(
        "import torch\nnet = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
    )
    pixels = (255 * lz.data.load("digits").test.batch(torch.tensor([0])).x[0, 0]).byte()
    Image.fromarray(pixels.numpy()).save(tmp_path / "digit.png")
    how = ("--teacher", "mine.py:net", "--data", "digits", "--steps", 20)
    done = type_words("train", "distill", *how, "-q", "-o", "run", cwd=tmp_path)
    assert done.returncode == 0 and "R2" in done.stdout, done.stderr
    done = type_words("read", "run", "digit.png", "--json", cwd=tmp_path)
    before = json.loads(done.stdout)["images"][0]["scores"]
    assert set(before) == {"0", "1", "2"}
    done = type_words("edit", "run", "digit.png", "-w", "1=0.5", "-o", "out.png", "--json",
                      cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0 and (tmp_path / "out.png").exists(), done.stderr
    assert json.loads(done.stdout)["score_error"] < 1e-2


def test_version_help_and_completion():
    assert type_words("version").stdout.strip() == lz.__version__
    top = spawn("--help").stdout
    names = "quickstart data train resume runs evaluate certify spectrum export report"
    for name in f"{names} project read imagine edit vary erase".split():
        assert name in top
        text = type_words(name, "--help").stdout
        assert "Example: linearizer" in re.sub(r"\s+", " ", text), name
    flags = type_words("train", "attributes", "--help").stdout
    assert "--steps" in flags and re.search(r"\[default:\s+1000\]", flags)
    assert "Example: linearizer train attributes" in flags
    show = spawn("--show-completion", env={**os.environ, "SHELL": "/bin/bash"})
    environment = {**os.environ, "_TYPER_COMPLETE_ARGS": "linearizer tra", "COMP_CWORD": "1",
                   "COMP_WORDS": "linearizer tra",
                   "_LINEARIZER_COMPLETE": "complete_bash"}  # fmt: skip
    code = "import sys; sys.argv = ['linearizer']; from linearizer.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, timeout=PATIENCE)  # fmt: skip
    assert show.returncode in (0, 1) and done.stdout.split() == ["train"]


def test_help_and_the_list_of_runs_do_not_load_torch():
    code = (
        "import sys, linearizer.cli, linearizer.runs.listing, pathlib; "
        "linearizer.runs.listing.list_runs(pathlib.Path('.')); "
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


# -- a shipped model -------


def test_project_takes_any_image_and_keeps_a_projection(tmp_path):
    from PIL import Image

    Image.new("RGB", (50, 40), (10, 200, 90)).save(tmp_path / "photo.jpg")
    done = type_words("project", "photo.jpg", "--score", "-o", "grid.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"rank 32; f\(f\(x\)\) differs from f\(x\) by at most \de-0[5-9]", done.stdout)
    assert "photo.jpg: score" in done.stdout and "of held-out data score as high" in done.stdout
    assert "photo.jpg: converted, to grey and its centre square from 40 to 32" in done.stderr
    assert (tmp_path / "grid.png").exists()
    done = type_words(
        "project", "mnist-projector", "photo.jpg", "--rank", 5, "--json", cwd=tmp_path
    )
    result = json.loads(done.stdout)
    assert result["rank"] == 5 and result["idempotency_error"] < 1e-4
    assert [p.name for p in tmp_path.glob("mnist-projector-*.png")]


# -- the tour ------------------------------------------------------------------------------


def test_quickstart_writes_its_pictures_and_is_reproducible(tmp_path):
    from PIL import Image

    numbers = []
    for start in (spawn, type_words):  # the second time over the first
        done = start("quickstart", "--out", tmp_path / "tour", "--steps", 20)
        assert done.returncode == 0, done.stderr
        numbers.append(json.loads((tmp_path / "tour" / "summary.json").read_text()))
        for measured in ("training_seconds", "loop_over_one_step_seconds"):
            numbers[-1].pop(measured)
    assert numbers[0] == numbers[1]
    names = {"certificate.txt", "encoded.png", "index.html", "interpolation.png", "samples.png",
             "summary.json", "run"}  # fmt: skip
    assert {p.name for p in (tmp_path / "tour").iterdir()} == names
    assert all(name in done.stdout for name in names) and "step 20/20" in done.stderr
    for path in (tmp_path / "tour").glob("*.png"):
        with Image.open(path) as image:
            low, high = image.convert("L").getextrema()
            assert min(image.size) > 150 and high - low > 200
    assert numbers[0]["worst_law_float64"] < 1e-8 and numbers[0]["round_trip_float32"] < 1e-4
    assert numbers[0]["one_against_1000_steps_mse"] < 1e-8 and numbers[0]["rank"] == 24
    page = (tmp_path / "tour" / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 3 and "http" not in page
    certificate = (tmp_path / "tour" / "certificate.txt").read_text()
    assert certificate.count("pass: ") == 2 and "FAIL" not in certificate


def test_memory_that_python_lacks_is_one_sentence(monkeypatch, capsys):
    from linearizer.cli import base

    def fails():
        raise MemoryError("no room for 10 GiB")

    monkeypatch.setattr(base, "app", fails)
    assert base.run() == 2
    assert "linearizer: not enough memory for that (no room for 10 GiB)." in capsys.readouterr().err
