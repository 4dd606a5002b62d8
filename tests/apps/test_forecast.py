"""Forecasts: the laws of their map, the closed-form start, intervals, tables, and the commands."""

import csv
import datetime
import json

import pytest
import torch
from matplotlib.figure import Figure

from conftest import type_words
from laws import close
from linearizer import data
from linearizer.apps.forecast import evaluate as evaluation
from linearizer.apps.forecast import model as forecast
from linearizer.apps.forecast import ridge
from linearizer.apps.forecast import use as forecasting
from linearizer.data.dates import clock, continue_times, find_unreadable, scale
from linearizer.data.series import SERIES, SeriesSettings
from linearizer.data.tables import Timed, day_of, load_series, load_weather_series, read_csv
from linearizer.families import Periodic
from linearizer.operators import BlockDiagonal
from linearizer.runs.export import export
from linearizer.runs.store import load_data, open_run
from linearizer.training.draws import Draw
from linearizer.training.settings import resolve

LOOK_BACK, HORIZON, NAMES = 12, 6, ("a", "b", "c")
HOUR = datetime.timedelta(hours=1)
START = datetime.datetime(2021, 3, 1)


def rows(n=600, noise=0.3, seed=0):
    """Two daily waves and a slow walk, by the hour."""
    t = torch.arange(n, dtype=torch.float64)
    g = torch.Generator().manual_seed(seed)
    shocks = noise * torch.randn(n, 3, generator=g, dtype=torch.float64)
    a = torch.sin(2 * torch.pi * t / 24) + shocks[:, 0]
    b = 5 * torch.cos(2 * torch.pi * t / 24).clamp_min(0) + shocks[:, 1]
    return torch.stack([a, 100 + b, 0.2 * shocks[:, 2].cumsum(0)], 1)


def table(n=600, **options):
    times = tuple(str(START + i * HOUR) for i in range(n))
    return data.Table(rows(n, **options), NAMES, times)


def source(look_back=LOOK_BACK, horizon=HORIZON, **options):
    t = table(**options)
    n = len(t.values)
    parts, day = data.windows(t, look_back, horizon), day_of(t.times)
    train, test = int(0.7 * n), int(0.2 * n)
    bounds = ((0, train), (train - look_back, n - test), (n - test - look_back, n))
    timed = (Timed(p, day[a:b]) for p, (a, b) in zip(parts, bounds, strict=True))
    return data.Data("made", *timed, ())


def made(shaken=True, **settings):
    """A model with its closed-form start, and with weights that are nowhere zero."""
    config = {"columns": NAMES, "look_back": LOOK_BACK, "horizon": HORIZON, "hidden": 8}
    model = forecast.Forecast(forecast.Config(**{**config, **settings}))
    forecast.start(model, source())
    if shaken:
        with torch.no_grad():
            for p in (*model.source.parameters(), *model.target.parameters()):
                p += 0.1 * torch.randn_like(p)
    return model


def some(n=40, part="test"):
    return data.Moment(*(v.double() for v in getattr(source(), part).batch(torch.arange(n))))


# -- the map -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"harmonics": 2}, {"seen": 0, "knots": 0}, {"seen": 11, "changed": 99}],
    ids=["strict", "daily", "linear", "all seen"],
)
def test_every_law_holds(settings):
    model, batch = made(**settings), some()
    for t in (None, 0.3):
        f = model(t)
        assert isinstance(f.operator, BlockDiagonal)
        assert f.source.shape == (LOOK_BACK, 3) and f.target.shape == (HORIZON, 3)
        certificate = f.certify(batch.x, batch.y)
        assert certificate.passed, str(certificate)
    assert model(0.3)(batch.x).shape == batch.y.shape


def test_a_family_gives_each_window_the_core_of_its_time():
    model, batch = made(harmonics=3), some(9)
    together = model.predict(batch.x, batch.t)
    one_by_one = torch.cat(
        [model(float(t))(x[None]) for x, t in zip(batch.x, batch.t, strict=True)]
    )
    close(together, one_by_one)
    close(model(batch.t)(batch.x), together)
    assert not torch.allclose(model(0.0)(batch.x), model(0.5)(batch.x), atol=1e-3)
    close(model(0.25)(batch.x), model(1.25)(batch.x))  # a day later
    mean = torch.stack([model.operator(k / 24).blocks for k in range(24)]).mean(0)
    close(mean, model.operator().blocks)


@pytest.mark.parametrize("format", ["torch-export", "onnx"])
def test_a_forecaster_can_be_exported(tmp_path, format):
    if format == "onnx":
        pytest.importorskip("onnxscript", reason="needs the extra export")
        pytest.importorskip("onnxruntime", reason="needs the extra export")
    model = made().float()
    done = export(model(), tmp_path / "f", format, some().x.float())
    assert done.max_error < 1e-5 and (tmp_path / "f").exists()


def test_a_strict_map_does_not_know_the_time():
    model, batch = made(), some(5)
    close(model(0.1)(batch.x), model(0.7)(batch.x), 0.0)
    close(model.predict(batch.x, batch.t), model()(batch.x), 0.0)


def test_periodic_refuses_waves_that_do_not_fit():
    with pytest.raises(ValueError, match=r"expected waves \(2·harmonics, 2, 3, width\)"):
        Periodic(torch.zeros(2, 3, 4), torch.zeros(3, 2, 3, 4))
    with pytest.raises(ValueError, match="width of at most 4, got 5"):
        Periodic(torch.zeros(2, 3, 4), torch.zeros(2, 2, 3, 5))


def test_a_shift_of_the_level_moves_one_coordinate_only():
    model, batch = made(shaken=False, seen=0), some(3)
    z, moved = (
        model.source.coordinates(x).unflatten(1, (3, LOOK_BACK)) for x in (batch.x, batch.x + 2)
    )
    assert (z - moved).abs()[:, :, 1:].max() < 1e-12 and (z - moved).abs()[:, :, 0].min() > 0.5


# -- the start ---------------------------------------------------------------------------------


def windows_of(model, part, first=0, last=None):
    """Coordinates of pasts and futures, (C, n, ·), and the last values as futures."""
    batch = part.batch(torch.arange(first, len(part) if last is None else last))
    x, y = batch.x.double(), batch.y.double()
    z = model.source.coordinates(x).detach().unflatten(1, (3, LOOK_BACK)).movedim(1, 0)
    return z, y.permute(2, 0, 1), x[:, -1:].expand_as(y).permute(2, 0, 1)


def test_the_start_is_a_ridge_regression_of_the_windows_themselves():
    model, made_of = made(shaken=False, knots=0), source()
    z, y, last = windows_of(model, made_of.train)
    units = next(iter(model.source.g)).scale.double().mT.clone()
    units[:, 1] = 1
    with torch.no_grad():
        whole = forecast._moments(model, made_of.train)
    tiny = 1e-9 * torch.eye(LOOK_BACK)
    to_last = torch.linalg.solve(z.mT @ z / z.shape[1] + tiny, z.mT @ last / z.shape[1])
    size = torch.full((LOOK_BACK,), 0.3)
    size[0] = 2.0
    gram = z.mT @ z / z.shape[1] + torch.diag(size)
    expected = torch.linalg.solve(gram, z.mT @ y / z.shape[1] + size[:, None] * to_last)
    found = ridge.fit_core(whole, ridge.Choice(0, None, (2.0, 0.3)), units, LOOK_BACK)
    close(found, expected, 1e-8)
    # One matrix for all channels, in the units of the data: each channel's is it in its own.
    together = ridge.fit_core(whole, ridge.Choice(0, (1e-3, 0.1), ()), units, LOOK_BACK)
    raw = together / units[:, :, None]
    close(raw, raw[:1].expand_as(raw), 1e-10)
    # Held by a regression of all, a channel is that one.
    held = ridge.fit_core(whole, ridge.Choice(0, (1e-3, 0.1), (1e9, 1e9)), units, LOOK_BACK)
    close(held, together, 1e-6)


def test_the_start_is_no_worse_on_its_folds_than_any_plain_forecast():
    model, made_of = made(shaken=False, knots=0), source(n=1500)
    with torch.no_grad():
        forecast.start(model, made_of)
        folds = forecast._forward(model, made_of.train)
        folds.append((forecast._moments(model, made_of.train),
                      forecast._moments(model, made_of.val)))  # fmt: skip
    units = next(iter(model.source.g)).scale.double().mT.clone()
    units[:, 1] = 1

    def error(choice):
        return sum(float(ridge._error(ridge.fit_core(known, choice, units, LOOK_BACK), later))
                   for known, later in folds)  # fmt: skip

    best = error(ridge.choose(folds, units, LOOK_BACK, hold=False))
    many, none, some_of = (1e6, 1e6), (1e-6, 1e-6), (1.0, 1.0)
    ways = [(None, many), (None, none), (none, ()), (None, (1e6, 0.1)), (some_of, some_of)]
    for other in (ridge.Choice(0, *way) for way in ways):
        assert best <= error(other) * (1 + 1e-3)


def wandering(n, channels, seed, decay=1.0):
    g = torch.Generator().manual_seed(seed)
    x, rows = torch.zeros(channels, dtype=torch.float64), []
    for shock in torch.randn(n, channels, generator=g, dtype=torch.float64):
        x = decay * x + shock
        rows.append(x)
    return torch.stack(rows)


def test_what_wanders_is_told_from_what_comes_back():
    wild = ridge.wanders(wandering(4000, 20, 1), 24)
    assert wild.double().mean() > 0.9
    assert not ridge.wanders(wandering(4000, 20, 1, decay=0.97), 24).any()
    t = torch.arange(4000, dtype=torch.float64)
    assert not ridge.wanders(torch.sin(t / 4)[:, None] + 0.1 * torch.randn(4000, 1), 24).any()
    assert ridge.wanders(torch.zeros(50, 2), 24).all()  # what stands still stays


@pytest.mark.parametrize(("decay", "least", "most"), [(1.0, 0.95, 1.03), (0.97, 0.5, 0.9)])
def test_the_start_keeps_the_level_of_what_wanders_alone(decay, least, most):
    """Beside the last value: no worse on random walks far ahead, and better on what comes back."""
    t = data.Table(wandering(4000, 4, 3, decay), tuple("abcd"))
    parts = [Timed(p) for p in data.windows(t, 24, 96)]
    model = forecast.Forecast(forecast.Config(columns=tuple("abcd"), look_back=24, horizon=96))
    forecast.start(model, data.Data("made", *parts, ()))
    with torch.no_grad():
        errors = [
            evaluation.measure_errors(predict, parts[2])["mse"]
            for predict in (
                lambda b: model.predict(b.x.double(), b.t),
                lambda b: b.x[:, -1:].expand_as(b.y),
            )
        ]
    assert least < errors[0] / errors[1] < most, errors


@pytest.mark.parametrize("kind", ["ramp", "sine", "two waves"])
def test_smooth_tables_have_a_start(kind):
    """Their moments are singular: the search for ridges still ends, and is right."""
    t = torch.arange(600, dtype=torch.float64)[:, None]
    wave = torch.sin(2 * torch.pi * t / 24)
    values = {"ramp": t, "sine": wave, "two waves": wave + torch.cos(t / 3)}[kind]
    parts = [Timed(p) for p in data.windows(data.Table(values, ("a",)), 48, 12)]
    model = forecast.Forecast(forecast.Config(columns=("a",), look_back=48, horizon=12))
    forecast.start(model, data.Data("made", *parts, ()))
    with torch.no_grad():
        error = evaluation.measure_errors(lambda b: model.predict(b.x.double(), b.t), parts[2])
        last = evaluation.measure_errors(lambda b: b.x[:, -1:].expand_as(b.y), parts[2])
    assert error["mse"] < 0.1 * last["mse"]


def test_folds_go_forward_in_time():
    """What is known in a fold ends before its part of time begins."""
    train, model = source(n=1500).train, made(shaken=False)
    n, gap = len(train), LOOK_BACK + HORIZON
    with torch.no_grad():
        folds = forecast._forward(model, train)

    def moment(first, last):
        z, _, _ = windows_of(model, train, first, last)
        return z.mT @ z / z.shape[1]

    ends = [n * k // forecast.PARTS for k in range(forecast.PARTS + 1)]
    assert len(folds) == forecast.FOLDS == 4
    for k, (known, later) in enumerate(folds, forecast.PARTS - forecast.FOLDS):
        close(later.pp, moment(ends[k], ends[k + 1]))
        close(known.pp, moment(0, ends[k] - gap))
    assert forecast._forward(model, source(n=80).train) == []  # too short to cut


def test_the_start_of_a_family_follows_the_day():
    """y is next hour's, and depends on the hour: a fixed core cannot know, a family does."""
    errors = {}
    batch = some(60)
    for harmonics in (0, 2):
        model = made(shaken=False, harmonics=harmonics, seen=0, knots=0)
        error = model.predict(batch.x, batch.t) - batch.y
        errors[harmonics] = float(error[:, :, 1].detach().square().mean())
    assert errors[2] < errors[0]


def test_training_windows_are_cut_and_others_are_not():
    model, batch = made(), some(4)
    wild = data.Moment(batch.x, batch.y.clone(), batch.t)
    wild.y[0, 0, 0] = 1000.0
    cut = data.Moment(batch.x, wild.y.clamp(-8, 8), batch.t)
    close(
        forecast.loss(model, wild, Draw(0))["mse"], forecast.loss(model, cut, Draw(0))["mse"], 0.0
    )
    measured = forecast.measure(model, wild, Draw(0))
    assert measured["mse"][0] > 1000 > measured["clamped mse"][0]
    assert {k: v.shape for k, v in measured.items()} == dict.fromkeys(measured, (4,))


def test_harmonics_need_a_time_of_day():
    blind = source()
    blind = blind._replace(train=Timed(blind.train.windows))
    config = forecast.Config(columns=NAMES, look_back=LOOK_BACK, horizon=HORIZON, harmonics=1)
    with pytest.raises(ValueError, match="harmonics=1 needs the time of day, but made has no"):
        forecast.start(forecast.Forecast(config), blind)


def test_scale_and_unscale_are_the_training_rows():
    model, t = made(), table()
    train = t.values[: int(0.7 * len(t.values))]
    scaled = model.scale(train)
    assert scaled.mean(0).abs().max() < 1e-5 and (scaled.std(0) - 1).abs().max() < 1e-2
    close(model.unscale(scaled), train)


# -- uncertainty -------------------------------------------------------------------------------


def test_intervals_cover_what_they_say_on_gaussian_data():
    """Rows that are white noise: the truth is inside 90% (and 50%) intervals as often."""
    t = data.Table(torch.randn(6000, 2) * torch.tensor([1.0, 7.0]), ("a", "b"))
    parts = [Timed(p) for p in data.windows(t, 8, 4)]
    made_of = data.Data("noise", *parts, ())
    config = forecast.Config(columns=("a", "b"), look_back=8, horizon=4)
    model = forecast.Forecast(config)
    forecast.start(model, made_of)
    with torch.no_grad():
        model.target.g.layers[0].raw.normal_(std=0.3)  # a bent g_y: quantiles pass through it
        model.target.g.layers[0].shift.normal_(std=0.3)
    forecast.finish(model, made_of)
    x, y, moment = (v.double() for v in parts[2].batch(torch.arange(len(parts[2]))))
    for coverage in (0.9, 0.5):
        lower, middle, upper = model.interval(x, moment, coverage)
        assert (lower <= upper).all()
        inside = ((lower <= y) & (y <= upper)).double().mean((0, 1))
        assert (inside - coverage).abs().max() < 0.04, inside
        close(middle, model.predict(x, moment), 0.0)
    with pytest.raises(ValueError, match="a coverage between 0 and 1, got 1.0"):
        model.interval(x, moment, 1.0)


def test_a_wider_interval_holds_a_narrower_one():
    model, batch = made(), some(5)
    forecast.finish(model, source())
    wide, narrow = (model.interval(batch.x, batch.t, c) for c in (0.95, 0.5))
    assert (wide.lower <= narrow.lower).all() and (narrow.upper <= wide.upper).all()


def test_a_gaussian_passes_through_the_core_in_closed_form():
    model = made(harmonics=1)
    mean = torch.randn(1, 3 * LOOK_BACK)
    root = 0.3 * torch.randn(3, LOOK_BACK, LOOK_BACK)
    centre, covariance = model.carry(mean, root @ root.mT, 0.4)
    noise = torch.einsum("cij,ncj->nci", root, torch.randn(40_000, 3, LOOK_BACK)).flatten(1)
    w = model.operator(0.4)(mean + noise).detach()
    close(centre.detach(), w.mean(0, keepdim=True), 0.05, floor=1.0)
    measured = torch.stack([part.mT.cov() for part in w.unflatten(1, (3, -1)).unbind(1)])
    covariance = covariance.detach()
    assert float((measured - covariance).abs().max() / covariance.abs().max()) < 0.05


# -- the protocol ------------------------------------------------------------------------------


def test_the_weather_has_the_windows_of_the_protocol(data_root):
    if not (data_root / "weather").is_dir():
        pytest.skip(f"there is no {data_root / 'weather'}")
    for horizon, count in ((96, 10444), (192, 10348), (336, 10204), (720, 9820)):
        (train, val, test), notes = load_weather_series(data_root, 96, horizon)
        assert len(test) == count and train.shape == (96, 21)
        plain = data.load("weather", data_root, look_back=96, horizon=horizon)
        assert torch.equal(test.windows.rows, plain.test.rows) and len(val) == len(plain.val)
    assert any("-9999" in note for note in notes)
    # Ten minutes from row to row, but for one that stands twice and the gap after it.
    t = test.batch(torch.tensor([0, 1, 144])).t
    assert abs(float(t[1] - t[0]) - 1 / 144) < 1e-5 and abs(float(t[2] - t[0])) < 1e-5


def test_the_weather_is_not_changed(data_root):
    if not (data_root / "weather").is_dir():
        pytest.skip(f"there is no {data_root / 'weather'}")
    with pytest.raises(ValueError, match="weather is taken as published, without sentinel"):
        SERIES.load(SeriesSettings(sentinel="-9999"), data_root, None)


# -- tables ------------------------------------------------------------------------------------


def written(path, n=600, change=None, values=None, form="%Y-%m-%d %H:%M", step=HOUR):
    values = rows(n) if values is None else values
    lines = [
        [(START + i * step).strftime(form), *(f"{v:.5f}" for v in row)]
        for i, row in enumerate(values.tolist())
    ]
    if change is not None:
        change(lines)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["date", *NAMES], *lines])
    return path


def no_wind(lines):
    for line in lines:
        line[2] = "4.5"


def test_a_column_that_stands_still_is_noted_and_foretold(tmp_path):
    loaded = SERIES.load(
        SeriesSettings(name=str(written(tmp_path / "my.csv", change=no_wind)), look_back=12,
                       horizon=6), None, None)  # fmt: skip
    assert any("constant over the training rows: b" in note for note in loaded.notes)
    windows = loaded.train.windows
    still = windows.columns.index("b")
    assert float(windows.rows[:, still].abs().max()) == 0 and float(windows.std[still]) == 1
    times = [line.split(",")[0] for line in (tmp_path / "my.csv").read_text().splitlines()[1:]]
    rows = [[time, "1", "2", "3"] for time in times]
    with open(tmp_path / "flat.csv", "w", newline="") as file:
        csv.writer(file).writerows([["date", *NAMES], *rows])
    flat = SeriesSettings(name=str(tmp_path / "flat.csv"), look_back=12, horizon=6)
    loaded = SERIES.load(flat, None, None)
    model = forecast.Forecast(forecast.Config(**forecast.facts(loaded)))
    with pytest.raises(ValueError, match="every column of flat.csv stays as it is"):
        forecast.start(model, loaded)


def put(row, column, value):
    def change(lines):
        lines[row][column] = value

    return change


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (put(9, 0, "2021-03-01 08:00"), {},
         r"line 11, column 'date': '2021-03-01 08:00' repeats '2021-03-01 08:00'"),
        (put(9, 0, "2021-03-01 02:00"), {}, r"line 11, column 'date': .* goes back after"),
        (lambda lines: lines.pop(9), {}, r"line 11, column 'date': .* leaves a gap after"),
        (put(9, 0, "noon"), {},
         r"line 11, column 'date': expected a time such as one as in the row before "
         r"\('2021-03-01 08:00'\), found 'noon'"),
        (put(4, 2, "wet"), {}, r"expected a number in line 6, column 'b', found 'wet'"),
        (put(9, 0, "2021-03-01 08:30"), {}, r"line 11, column 'date': .* comes too early after"),
        (put(0, 0, "2021-13-01 08:30"), {}, r"line 2, column 'date': .* found '2021-13-01 08:30'"),
        (put(4, 2, "inf"), {}, r"expected a number in line 6, column 'b', found 'inf'"),
        (put(4, 2, ""), {}, r"some are missing: 1 in 'b'. Choose --fill .* in line 6, column 'b'"),
        (None, {"horizon": 300},
         r"my.csv: windows: 600 rows split 420/60/120 are too few for look_back=12"),
        (None, {"target": "a,d"}, r"there is no column 'd' of numbers. It has a, b, c"),
        (None, {"target": "a,a"}, r"expected different columns to forecast"),
        (None, {"time": "dat"}, r"expected a column 'dat' for the time. Did you mean 'date'"),
    ],
    ids=["repeats", "goes back", "gap", "no date", "text", "too early", "no month", "infinite",
         "empty", "too short", "unknown target", "target twice", "unknown time"],
)  # fmt: skip
def test_what_is_wrong_with_a_table_is_said(tmp_path, change, options, said):
    path = written(tmp_path / "my.csv", change=change)
    with pytest.raises(ValueError, match=said):
        load_series(path, **{"look_back": LOOK_BACK, "horizon": HORIZON, **options})


def test_a_table_is_taken_as_told(tmp_path):
    def faults(lines):
        lines[9][0] = lines[8][0]
        lines[20][1], lines[30][2] = "", "-9999"

    path = written(tmp_path / "my.csv", change=faults)
    settings = SeriesSettings(
        name=str(path), look_back=LOOK_BACK, horizon=HORIZON, spacing="any", target="b, a",
        missing="interpolate", sentinel="-9999",
    )  # fmt: skip
    loaded = SERIES.load(settings, None, None)
    assert loaded.train.windows.columns == ("b", "a") and loaded.train.windows.rows.shape[1] == 2
    assert loaded.train.windows.rows.abs().max() < 10
    said = " ".join(loaded.notes)
    assert "-9999 was read as missing: 1 in 'b'" in said and "filled by interpolation" in said


def test_a_table_is_cleaned_in_one_go(tmp_path):
    path = written(tmp_path / "my.csv")
    lines = [line.split(",") for line in path.read_text().splitlines()]
    lines = [[*line, f"text {i}" if i else "note"] for i, line in enumerate(lines)]
    lines[20][1] = lines[30][2] = ""
    path.write_text("\n".join(map(",".join, lines)))
    asked = {"name": str(path), "look_back": LOOK_BACK, "horizon": HORIZON}
    with pytest.raises(ValueError, match=r"\(600 in all\).* --columns numeric .* leaves out text"):
        SERIES.load(resolve(SeriesSettings, "here", asked), None, None)
    asked["columns"] = "numeric"
    with pytest.raises(ValueError, match="Choose --fill interpolate, previous or drop"):
        SERIES.load(resolve(SeriesSettings, "here", asked), None, None)
    for name in ("fill", "missing"):  # the newer name of a setting, and its first
        settings = resolve(SeriesSettings, "here", {"missing": "error"}, asked, {name: "drop"})
        assert settings.missing == "drop" and "missing" in settings.model_dump()
        loaded = SERIES.load(settings, None, None)
        assert loaded.train.windows.columns == ("a", "b", "c")
        assert "not all cells are numbers: 'note'" in " ".join(loaded.notes)


def test_settings_of_a_table_are_checked(tmp_path):
    for wrong, said in (
        ({"sentinel": "much"}, "expects numbers"),
        ({"size": 8}, "is for images"),
        ({"look_back": 1}, "greater than or equal to 2"),
    ):
        with pytest.raises(ValueError, match=said):
            SeriesSettings(**wrong)
    with pytest.raises(
        ValueError, match=r"expected weather or a .csv or .csv.gz file, got 'mnist'"
    ):
        SERIES.load(SeriesSettings(name="mnist"), None, None)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        SERIES.load(SeriesSettings(name=str(tmp_path / "none.csv")), None, None)


def test_times_are_read_in_many_forms():
    one = clock(["2021-03-01 00:00", "2021-03-01 01:00"])
    for times in (
        ["2021/03/01 00:00:00", "2021/03/01 01:00:00"],
        ["01.03.2021 00:00", "01.03.2021 01:00"],
        ["01/03/2021 00:00:00", "01/03/2021 01:00:00"],
        ["2021-03-01T00:00:00Z", "2021-03-01T01:00:00Z"],
    ):
        assert clock(times).tolist() == one.tolist()
        assert continue_times(times, 1)[0] == times[0].replace("00:00", "02:00", 1)
    assert clock(["1", "2"]) is None and clock([]) is None and clock(["2021-03-01", "soon"]) is None
    assert day_of(["2021-03-01 06:00"]).tolist() == [0.25]
    assert continue_times(["mon", "tue"], 2) == ["1", "2"] and continue_times(["5"], 2) == [
        "1",
        "2",
    ]
    assert continue_times(["2021-02-27", "2021-02-28"], 2) == ["2021-03-01", "2021-03-02"]


@pytest.mark.parametrize(
    ("times", "after"),
    [
        (["12/30/2020", "12/31/2020"], "01/01/2021"),  # the days tell that the month is first
        (["2020-11-30", "2020-12-31", "2021-01-31"], "2021-02-28"),
        (["2020-01-15", "2021-01-15"], "2022-01-15"),
        (["2020-07", "2020-10"], "2021-01"),
        (["2021-03-01T12:00:00+02:00", "2021-03-01T12:30:00+02:00"], "2021-03-01T13:00:00+02:00"),
        (["2021-03-01 12:00:00.000", "2021-03-01 12:00:00.250"], "2021-03-01 12:00:00.500"),
        (["0.1", "0.2", "0.3"], "0.4"),
    ],
)
def test_times_go_on_as_they_are_written(times, after):
    assert continue_times(times, 1) == [after]


def test_months_are_equal_steps_and_a_missing_one_is_a_gap():
    months = [f"2020-{m:02d}-01" for m in range(1, 13)]
    assert scale(months).unit == "months" and set(scale(months).at[1:] - scale(months).at[:-1]) == {
        1
    }
    assert scale(["2020-01-01", "2020-01-02"]).unit == "s" and scale(["1", "2"]).unit == ""
    assert scale(["1", "nan"]) is None
    assert find_unreadable(months) is None and find_unreadable([*months, ""]) == 12
    assert find_unreadable(["1", "2", "x", "4"]) == 2 and find_unreadable(["x", "1"]) == 0


def test_steps_that_only_rounding_changes_are_equal(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("t,time,x\n" + "".join(f"7,{i / 300:.5f},{i % 7}\n" for i in range(50)))
    assert read_csv(path, equal=True, columns=["x"]).columns == ("x",)
    path.write_text(
        "date,x\n2020-01-01,1\n2020-02-01,2\n2020-03-01,1\n2020-05-01,3\n2020-06-01,1\n"
    )
    with pytest.raises(ValueError, match="line 5, column 'date': '2020-05-01' leaves a gap after"):
        read_csv(path, equal=True)
    path.write_text("time,x\n1,5\n2,6\nlate,7\n")
    with pytest.raises(ValueError, match="line 4, column 'time': .* found 'late'"):
        read_csv(path, equal=True)
    path.write_text("time,x\nmon,5\ntue,6\n")
    assert (
        "times such as 'mon' in column 'time' cannot be read" in read_csv(path, equal=True).notes[0]
    )


def test_only_the_asked_columns_must_be_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("date,place,a,b\n" + "".join(
        f"{(START + i * HOUR).isoformat()},Jena,{i % 5},{'' if i == 9 else i % 7}\n"
        for i in range(99)
    ))  # fmt: skip
    with pytest.raises(ValueError, match="line 2, column 'place', found 'Jena'.* other columns"):
        load_series(path, 4, 2)
    parts, _ = load_series(path, 4, 2, target="a")
    assert parts[0].windows.columns == ("a",) and parts[0].step == (3600.0, "s")
    with pytest.raises(ValueError, match="in line 11, column 'b'"):
        load_series(path, 4, 2, target="b,a")
    path.write_text("date,a,a\n2020-01-01,1,2\n2020-01-02,3,4\n")
    with pytest.raises(ValueError, match="2 columns are named 'a'"):
        read_csv(path)
    path.write_text(",date,a\n0,2020-01-01,1\n1,2020-01-02,3\n")  # as a data frame is written
    table = read_csv(path)
    assert table.columns == ("a",) and "has no name and counts the rows" in table.notes[0]


def test_numbers_may_count_the_time(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time,x\n" + "".join(f"{i},{i % 7}\n" for i in range(50)))
    assert read_csv(path, equal=True).times[-1] == "49"
    path.write_text("time,x\n1,5\n2,6\n4,7\n5,8\n")
    with pytest.raises(ValueError, match="line 4, column 'time': '4' leaves a gap after '2'"):
        read_csv(path, equal=True)


# -- commands ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the daily preset on a small table, by the command."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("forecast")
    path = written(folder / "my.csv", values=rows())
    done = type_words("train", "forecast", "--csv", path, "--time", "date", "--target", "all",
                      "--look-back", LOOK_BACK, "--horizon", HORIZON, "--preset", "daily",
                      "--hidden", 8, "--steps", 30, "--validate-every", 10, "--no-tensorboard",
                      "-o", folder / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "split 70/10/20" in done.stderr
    return folder / "run"


def test_a_run_knows_its_table_and_starts_from_the_closed_form(trained):
    config = json.loads((trained / "config.json").read_text())
    assert config["model"]["columns"] == list(NAMES) and config["model"]["harmonics"] == 3
    assert config["data"]["look_back"] == LOOK_BACK and config["data"]["time"] == "date"
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    losses = [row for row in rows if "mse" in row]
    assert losses[0]["mse"] < 0.3  # a zero core has 1
    assert list((trained / "samples").glob("*.png"))


def test_a_forecast_continues_the_table_in_its_units(trained, tmp_path):
    recent = written(tmp_path / "recent.csv", n=100)
    out, plot = tmp_path / "f.csv", tmp_path / "f.png"
    done = type_words("forecast", trained, "--csv", recent, "-o", out, "--plot")
    assert done.returncode == 0, done.stderr
    assert "6 rows, 2021-03-05 04:00 to 2021-03-05 09:00" in done.stdout and plot.exists()
    with open(out, newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["date", *(f"{n}{e}" for n in NAMES for e in ("", " low", " high"))]
    assert len(lines) == HORIZON and lines[0][0] == "2021-03-05 04:00"
    numbers = torch.tensor([[float(v) for v in line[1:]] for line in lines]).unflatten(1, (3, 3))
    middle, low, high = numbers.unbind(2)
    assert (low < high).all()
    assert (middle[:, 1] > 90).all() and middle[:, 0].abs().max() < 3  # the units of the table
    # The same as the model says.
    model = open_run(trained).model.float()
    values = rows(100)[-LOOK_BACK:].float()
    t = day_of([str(START + 99 * HOUR)]).float()
    said = model.unscale(model.predict(model.scale(values)[None], t))[0]
    assert torch.allclose(said, middle.float(), atol=1e-3)
    narrow = type_words("forecast", trained, "--csv", recent, "-o", tmp_path / "g.csv",
                        "--coverage", 0.5, "--json")  # fmt: skip
    assert json.loads(narrow.stdout)["coverage"] == 0.5
    with open(tmp_path / "g.csv", newline="") as file:
        _, *again = csv.reader(file)
    assert float(again[0][3]) < float(lines[0][3]) and again[0][1] == lines[0][1]


def test_a_forecast_refuses_what_does_not_fit(trained, tmp_path):
    short = written(tmp_path / "short.csv", n=5)
    other = tmp_path / "other.csv"
    other.write_text("date,a,b\n2021-03-01,1,2\n2021-03-02,1,2\n")
    dateless = tmp_path / "dateless.csv"
    dateless.write_text("a,b,c\n" + "1,2,3\n" * 20)
    for path, said in (
        (short, "expected 12 or more rows, as many as the look-back, got 5"),
        (other, "there is no column 'c' of numbers. It has a, b."),
        (tmp_path / "none.csv", "there is no such file"),
    ):
        done = type_words("forecast", trained, "--csv", path)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(ValueError, match="expected a column 'date' for the time"):
        forecasting.forecast(trained, dateless)
    with pytest.raises(ValueError, match="expected a coverage between 0 and 1, got 90"):
        forecasting.forecast(trained, short, coverage=90)
    good = written(tmp_path / "good.csv", n=20)
    for out in (good, tmp_path / "f.png"):
        with pytest.raises(ValueError, match="expected a CSV file of its own to write"):
            forecasting.forecast(trained, good, out)
    daily = written(tmp_path / "daily.csv", n=20, step=24 * HOUR)
    with pytest.raises(ValueError, match="rows that are 3600 s apart, as in .* got 86400 s"):
        forecasting.forecast(trained, daily)


def test_gaps_of_a_recent_table_are_filled_only_if_asked(trained, tmp_path):
    def faults(lines):
        lines[30][1], lines[35][2] = "", "-9999"

    path, out = written(tmp_path / "recent.csv", n=40, change=faults), tmp_path / "f.csv"
    done = type_words("forecast", trained, "--csv", path, "-o", out)
    assert done.returncode == 2 and "in line 32, column 'a'" in done.stderr and not out.exists()
    done = type_words("forecast", trained, "--csv", path, "-o", out, "--missing", "interpolate",
                      "--sentinel", "-9999")  # fmt: skip
    assert done.returncode == 0 and "filled by interpolation: 1 in 'a', 1 in 'b'" in done.stderr
    assert "-9999 was read as missing: 1 in 'b'" in done.stderr
    with open(out, newline="") as file:
        _, *lines = csv.reader(file)
    assert all(90 < float(line[4]) < 110 for line in lines)


def test_a_run_is_measured_on_its_own_table(trained, tmp_path):
    done = type_words("evaluate", trained, "-o", tmp_path / "e", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    model = open_run(trained).model.float()
    test = load_data(open_run(trained)).test
    x, y, t = test.batch(torch.arange(len(test)))
    mse = float((model.predict(x, t) - y).detach().square().mean())
    assert result["errors"]["ours"]["mse"] == pytest.approx(mse, rel=1e-3)
    assert result["errors"]["ours"]["mse"] < result["errors"]["last value"]["mse"]
    assert 0.7 < result["intervals"]["coverage"] < 1 and result["test_windows"] == len(test)
    for name in ("forecast.json", "error-by-step.png", "example.png"):
        assert (tmp_path / "e" / name).stat().st_size > 500
    plain = type_words("evaluate", trained, "-o", tmp_path / "e", "-n", 7)
    assert "nominal 0.9, coverage" in plain.stdout and "last value: mse" in plain.stdout
    assert "test windows 7" in plain.stdout


def test_a_wrong_table_is_one_sentence_on_the_command_line(tmp_path):
    path = written(tmp_path / "my.csv", change=put(4, 2, "wet"))
    done = type_words("train", "forecast", "--csv", path, "--out", tmp_path / "run")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "expected a number in line 6, column 'b', found 'wet'" in done.stderr
    for flag in ("--missing", "--fill"):
        done = type_words("train", "forecast", "--csv", path, flag, "guess")
        assert done.returncode == 2 and "guess" in done.stderr


def test_own_tables_are_measured_by_their_columns(trained, tmp_path):
    path = written(tmp_path / "my.csv")
    lines = [line.split(",") for line in path.read_text().splitlines()]
    lines = [[d, c, a, "note" if not i else "x", b] for i, (d, a, b, c) in enumerate(lines)]
    lines[40][2] = ""
    other = tmp_path / "other.csv"
    other.write_text("\n".join(map(",".join, lines)))
    flags = ("--columns", "numeric", "--fill=interpolate", "--out", tmp_path / "e", "--json")
    done = type_words("evaluate", trained, "--data", other, *flags)
    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)["errors"]["ours"]["mse"]
    done = type_words("evaluate", trained, "--data", path, "--out", tmp_path / "e", "--json")
    assert ours == pytest.approx(json.loads(done.stdout)["errors"]["ours"]["mse"], rel=0.05)
    for words, said in ((("more",), "expected one run and flags, got 'more'"),
                        (("--fil", "drop"), "there is no setting 'fil'")):  # fmt: skip
        done = type_words("evaluate", trained, *words)
        assert done.returncode == 2 and said in done.stderr


def test_a_plot_has_the_dates_of_its_table(trained, tmp_path, monkeypatch):
    seen = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *a, **k: (seen.append(figure), save(figure, *a, **k))
    )
    path = written(tmp_path / "my.csv", n=40)
    done = type_words("forecast", trained, "--csv", path, "-o", tmp_path / "f.csv", "--plot")
    assert done.returncode == 0, done.stderr
    axes = seen[0].axes[-1]
    assert (
        str(axes.lines[0].get_xdata()[-1]).startswith("2021-03-02T15:00")
        and axes.get_xlabel() == ""
    )
    path, zeros = tmp_path / "x.png", (torch.zeros(3, 1),) * 4
    forecasting.series_plot(path, *zeros, None, ["a"], times=["x"] * 6)
    assert seen[1].axes[0].get_xlabel() == "steps after the last row"


def test_spectrum_certificate_and_back_casts_of_a_run(trained):
    picture = trained.parent / "values.png"
    done = type_words("spectrum", trained, "-o", picture)
    assert done.returncode == 0 and picture.read_bytes().startswith(b"\x89PNG"), done.stderr
    done = type_words("spectrum", trained, "-k", 4)
    assert done.returncode == 0, done.stderr
    assert f"core {3 * HORIZON} × {3 * LOOK_BACK}" in done.stdout
    for name in ("spectrum.png", "input-singular-vectors.png", "output-singular-vectors.png"):
        assert (trained / "spectrum" / name).stat().st_size > 1000
    assert type_words("certify", trained).returncode == 0
    model = open_run(trained).model.double()
    _, y, t = (v.double() for v in source().test.batch(torch.arange(4)))
    f = model(float(t[0]))
    past = f.pinv()(y[:1])  # the least past that has this future
    assert past.shape == (1, LOOK_BACK, 3)
    close(f(past), y[:1], 1e-6)


def test_coverage_and_errors_are_counted_over_all_windows():
    model, part = made(harmonics=1).float(), source().test
    forecast.finish(model, source())
    found = evaluation.measure_intervals(model, part, 0.8)
    x, y, t = part.batch(torch.arange(len(part)))
    lower, middle, upper = model.interval(x, t, 0.8)
    inside = ((lower <= y) & (y <= upper)).double().mean()
    assert found["coverage"] == pytest.approx(float(inside)) and found["nominal"] == 0.8
    assert set(found["coverage_by_channel"]) == set(NAMES)
    errors = evaluation.measure_errors(lambda batch: model.predict(batch.x, batch.t), part)
    assert errors["mse"] == pytest.approx(float((middle - y).square().mean()), 1e-5)
    assert errors["mae"] == pytest.approx(float((middle - y).abs().mean()), 1e-5)
    assert errors["mse_by_step"].shape == (HORIZON,)


def test_the_ridge_regression_finds_a_linear_rule():
    """Each row is 0.9 times the one before: the rest of the forecast is known exactly."""
    t = data.Table((0.9 ** torch.arange(200))[:, None].repeat(1, 2), ("a", "b"))
    train, val, _ = (Timed(part) for part in data.windows(t, 4, 3))
    weight = evaluation.fit_ridge(train, val)
    assert weight.shape == (2, 5, 3)
    batch = val.batch(torch.arange(5))
    close(evaluation._apply_ridge(weight, batch.x), batch.y.double(), 1e-4)


def test_a_period_is_known_from_the_step():
    def period(**settings):
        return evaluation.find_period(forecast.Config(**settings))

    assert period(step=3600.0, step_unit="s", look_back=96) == 24
    assert period(step=1.0, step_unit="months", look_back=24) == 12
    assert period(step=3600.0, step_unit="s", look_back=12) is None  # the past is too short
    assert period(step=50000.0, step_unit="s", look_back=96) is None  # no whole rows in a day
    assert period(step=1.0, step_unit="") is None and period() is None


def test_another_table_is_measured_in_the_scale_of_training(trained, tmp_path):
    path = written(tmp_path / "other.csv", values=2 * rows(seed=1) + 3)
    result = json.loads(type_words("evaluate", trained, "--data", path, "--json").stdout)
    model, settings = open_run(trained).model, open_run(trained).config["data"]
    test = SERIES.load(SeriesSettings(**{**settings, "name": str(path)}), None, None).test
    x, y, t = test.batch(torch.arange(len(test)))
    units = (x * test.windows.std + test.windows.mean, y * test.windows.std + test.windows.mean)
    x, y = (model.scale(v) for v in units)
    mse = float((model.predict(x, t) - y).detach().square().mean())
    assert result["errors"]["ours"]["mse"] == pytest.approx(mse, rel=1e-3)
    path.write_text(path.read_text().replace("date,a,b,c", "date,a,b,d"))
    done = type_words("evaluate", trained, "--data", path)
    assert done.returncode == 2 and "expected the columns a, b, c, as in training" in done.stderr


# -- the page of the studio --------------------------------------------------------------------


def test_the_page_foretells_a_pasted_table_and_an_example(trained, tmp_path):
    from fastapi.testclient import TestClient

    from linearizer.studio.server import create_app

    with TestClient(create_app(trained.parent), base_url="http://localhost") as client:
        name = f"{trained.parent.name}/run"

        def post(status=200, **asked):
            torch.set_default_dtype(torch.float32)
            try:
                answer = client.post("/api/forecast", json={"model": name, **asked})
            finally:
                torch.set_default_dtype(torch.float64)
            assert answer.status_code == status, answer.text
            return answer.json()

        recent = written(tmp_path / "recent.csv", n=100)
        found = post(table=recent.read_text(), column="b", coverage=0.5)
        made = forecasting.forecast(trained, recent, tmp_path / "f.csv", coverage=0.5)
        with open(made["files"][0], newline="") as file:
            lines = list(csv.DictReader(file))
        assert found["column"] == "b" and found["times"] == [line["date"] for line in lines]
        for key, end in (("middle", ""), ("lower", " low"), ("upper", " high")):
            assert found[key] == pytest.approx([float(line[f"b{end}"]) for line in lines], rel=1e-4)
        assert found["past"] == pytest.approx(rows(100)[-LOOK_BACK:, 1].tolist(), abs=1e-4)
        assert len(found["before"]) == LOOK_BACK and found["before"][-1] == "2021-03-05 03:00"
        one, two = post(seed=1), post(seed=2)
        assert one["column"] == "a" and len(one["past"]) == LOOK_BACK and one["before"] == []
        assert len(one["middle"]) == HORIZON and one["past"] != two["past"] and one == post(seed=1)
        assert "one of a, b, c, got 'wind'" in post(422, column="wind")["error"]
        assert (
            "the table: there is no column 'c'"
            in post(422, table="date,a,b\n2021-03-01,1,2\n")["error"]
        )
        short = "\n".join(recent.read_text().splitlines()[:6])
        assert "expected 12 or more rows" in post(422, table=short)["error"]
        page = client.get("/").text
        assert 'id="tab-forecast"' in page and 'id="forecast-plot"' in page
        assert "export function forecast" in client.get("/static/apps/forecast/page.js").text
