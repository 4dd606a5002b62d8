"""Forecasts to compare with: exact where they are closed form, channel by channel, counted once."""

import math

import pytest
import torch

from linearizer import data
from linearizer.data import Table, Windows
from linearizer.training.loop import Training, fit
from paper.weather_baselines import (
    DLinear,
    LastValue,
    PatchTST,
    RidgeLinear,
    forecast_errors,
    forecast_loss,
    forecast_measure,
)

LOOK_BACK, HORIZON = 24, 8
MODELS = {
    "last value": lambda: LastValue(HORIZON),
    "ridge": lambda: RidgeLinear(LOOK_BACK, HORIZON),
    "DLinear": lambda: DLinear(LOOK_BACK, HORIZON, kernel=5),
    "PatchTST": lambda: PatchTST(
        LOOK_BACK, HORIZON, patch=8, stride=4, width=16, heads=4, hidden=32, layers=2
    ),
}


def waves(length: int = 400, channels: int = 3) -> Table:
    """Each channel is a sum of two waves, which a linear recurrence of order 5 continues."""
    t = torch.arange(length, dtype=torch.float64)[:, None]
    c = torch.arange(1, channels + 1, dtype=torch.float64)
    return Table(
        torch.sin(t * c / 7) + 0.5 * torch.cos(t / (3 + c)) + c, tuple("abcdefg"[:channels])
    )


def parts(table: Table | None = None) -> tuple[Windows, Windows, Windows]:
    return data.windows(table or waves(), LOOK_BACK, HORIZON)


@pytest.mark.parametrize("relative", [False, True])
def test_ridge_finds_a_linear_recurrence(relative):
    train, val, test = parts()
    each = RidgeLinear(LOOK_BACK, HORIZON, channels=3, relative=relative)
    each.fit(train, val, ridges=(1e-10, 1.0)).float()
    assert forecast_errors(each, test)["mse"] < 1e-8 and each.ridge.max() < 1e-9
    assert forecast_errors(LastValue(HORIZON), test)["mse"] > 0.1
    # One map for all channels continues what all have in common: here three waves of one kind.
    t = torch.arange(400.0)[:, None]
    shifted = Table(torch.sin(t / 7 + torch.arange(3.0)), tuple("abc"))
    train, val, test = parts(shifted)
    shared = RidgeLinear(LOOK_BACK, HORIZON, relative=relative).fit(train, val, [1e-10]).float()
    assert shared.weight.shape == (1, LOOK_BACK + 1, HORIZON)
    assert forecast_errors(shared, test)["mse"] < 1e-8


def test_ridge_is_the_least_squares_solution_and_the_best_ridge_on_validation():
    generator = torch.Generator().manual_seed(0)
    noisy = Table(torch.randn(600, 2, generator=generator).cumsum(0), ("a", "b"))
    train, val, _ = parts(noisy)
    model = RidgeLinear(LOOK_BACK, HORIZON, channels=2, relative=True)
    ridges = (1e-3, 1e-1, 10.0)
    model.fit(train, val, ridges)
    errors = []
    for ridge in ridges:
        x, y = (v.double() for v in train.batch(torch.arange(len(train))))
        a = torch.cat([x - x[:, -1:], torch.ones(len(x), 1, 2)], 1)
        penalty = (ridge * len(x)) ** 0.5 * torch.eye(LOOK_BACK + 1)[:-1]
        W = torch.stack([
            torch.linalg.lstsq(
                torch.cat([a[..., c], penalty]),
                torch.cat([y[..., c] - x[:, -1:, c], torch.zeros(LOOK_BACK, HORIZON)]),
            ).solution
            for c in range(2)
        ])  # fmt: skip
        x, y = (v.double() for v in val.batch(torch.arange(len(val))))
        a = torch.cat([x - x[:, -1:], torch.ones(len(x), 1, 2)], 1)
        errors.append((torch.einsum("nlc,clh->nhc", a, W) + x[:, -1:] - y).square().mean((0, 1)))
        for c in range(2):
            if float(model.ridge[c]) == ridge:
                assert torch.allclose(model.weight[c], W[c], atol=1e-9)
    assert [ridges[i] for i in torch.stack(errors).argmin(0)] == model.ridge.tolist()
    again = RidgeLinear(LOOK_BACK, HORIZON, channels=2, relative=True)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("name", MODELS)
def test_channels_do_not_see_each_other(name):
    model = MODELS[name]().eval()
    for p in model.parameters():
        p.data.normal_(std=0.3)
    x = torch.randn(6, LOOK_BACK, 5)
    y = model(x)
    order = torch.tensor([3, 0, 4, 1, 2])
    assert y.shape == (6, HORIZON, 5)
    assert torch.allclose(model(x[..., order]), y[..., order])
    x[..., 1] += 1
    assert torch.allclose(model(x)[..., [0, 2, 3, 4]], y[..., [0, 2, 3, 4]])


@pytest.mark.parametrize("name", ["DLinear", "PatchTST"])
def test_trained_baselines_learn(name):
    torch.set_default_dtype(torch.float32)
    train, val, _ = parts()
    model = MODELS[name]()
    before = forecast_errors(model, val)["mse"]
    training = Training(steps=40, batch=64, rate=1e-2, warmup=5, validate_every=40)
    result = fit(
        model, forecast_loss, train, training,
        validation=val, measure=forecast_measure, progress=False,
    )  # fmt: skip
    after = forecast_errors(model, val)
    assert after["mse"] < 0.5 * before
    assert math.isclose(result.metrics["mse"], after["mse"], rel_tol=1e-5)
    assert math.isclose(result.metrics["mae"], after["mae"], rel_tol=1e-5)


def test_published_sizes():
    assert sum(p.numel() for p in DLinear(96, 192).parameters()) == 2 * 97 * 192
    net = PatchTST(96, 192)
    assert net.position.shape == (12, 128) and net.head.weight.shape == (192, 12 * 128)
    assert len(net.layers) == 3 and net.layers[0].attention.head_dim == 8
    # The moving average of a straight line is the line, away from the ends; DLinear splits x.
    seen = {}
    linear = DLinear(96, 1)
    linear.trend.register_forward_hook(lambda m, inputs, y: seen.update(trend=inputs[0]))
    linear.seasonal.register_forward_hook(lambda m, inputs, y: seen.update(rest=inputs[0]))
    x = torch.arange(96.0)[None, :, None]
    linear(x)
    assert torch.allclose(seen["trend"] + seen["rest"], x.mT)
    assert torch.allclose(seen["trend"][..., 12:-12], x.mT[..., 12:-12])
    assert math.isclose(float(seen["trend"][0, 0, 0]), sum(range(13)) / 25)


def test_a_level_and_a_scale_pass_through_patches():
    net = MODELS["PatchTST"]().eval()
    x = torch.randn(4, LOOK_BACK, 2)
    assert torch.allclose(net(3 * x + 7), 3 * net(x) + 7, atol=1e-3)


def test_errors_count_everything_once():
    _, _, test = parts()
    whole = test.batch(torch.arange(len(test)))
    error = (whole.x[:, -1:] - whole.y).double()
    for batch in (1, 7, len(test), 10_000):
        got = forecast_errors(LastValue(HORIZON), test, batch)
        assert math.isclose(got["mse"], error.square().mean(), rel_tol=1e-12)
        assert math.isclose(got["mae"], error.abs().mean(), rel_tol=1e-12)
        assert torch.allclose(got["mse_by_step"], error.square().mean((0, 2)), rtol=1e-12)


def test_the_real_weather_is_counted_by_the_protocol(data_root):
    path = data_root / "weather" / "weather.csv.gz"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    table = data.read_csv(path)
    for horizon, count in ((96, 10444), (192, 10348), (336, 10204), (720, 9820)):
        *_, test = data.windows(table, 96, horizon)
        seen = []

        def predict(x, horizon=horizon, seen=seen):
            seen.append(len(x))
            return x[:, -1:].expand(-1, horizon, -1)

        errors = forecast_errors(predict, test)
        assert sum(seen) == len(test) == count and errors["mse_by_step"].shape == (horizon,)
        # The last value's squared error, step by step, without windows.
        rows = test.rows.double()
        first, last = rows[95 : 95 + count], horizon - 1
        for step in (0, last):
            direct = (rows[96 + step : 96 + step + count] - first).square().mean()
            assert math.isclose(errors["mse_by_step"][step], direct, rel_tol=1e-5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LastValue(0), "LastValue: expected horizon of 1 or more, got 0"),
        (lambda: RidgeLinear(0, 3), "RidgeLinear: expected look_back of 1 or more, got 0"),
        (lambda: RidgeLinear(4, 3, channels=0), "expected channels of 1 or more, got 0"),
        (lambda: DLinear(9, 3, kernel=4), "DLinear: expected an odd kernel, got 4"),
        (lambda: PatchTST(8, 3), "PatchTST: expected a patch of 1 to look_back=8 steps, got 16"),
        (lambda: PatchTST(32, 3, heads=7), "a width that divides into the heads, got 128 and 7"),
        (lambda: RidgeLinear(4, 3).fit(*parts()[:2]), "expected windows of horizon 3, got 8"),
        (lambda: RidgeLinear(4, 8).fit(*parts()[:2]), r"shape \(n, 4, channels\), got \(.*, 24, 3"),
        (lambda: RidgeLinear(24, 8).fit(*parts()[:2], [0.0]), r"ridges above 0, got \(0.0,\)"),
        (lambda: RidgeLinear(4, 3, 2)(torch.zeros(1, 4, 3)), r"shape \(n, 4, 2\), got \(1, 4, 3\)"),
        (lambda: DLinear(9, 3)(torch.zeros(1, 8, 3)), r"DLinear: expected pasts of shape \(n, 9"),
        (lambda: forecast_errors(LastValue(1), parts()[0]), "expected forecasts of shape"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(make, said):
    with pytest.raises(ValueError, match=said):
        make()
