r"""One-step flows (section 4.1, figure 5): the shipped ones, and a learned core beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linearizer.apps.base import Say
from linearizer.apps.flow.evaluate import measure_times
from linearizer.apps.flow.model import Flow
from linearizer.families import Leading, Prediction, TimeLowRank
from linearizer.metrics.images import digit_features, frechet
from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.store import load_data, open_run
from linearizer.training.draws import Draw
from linearizer.training.loop import Training, fit

from .claims import (
    APART,
    MISSING,
    SILENT,
    Claim,
    Found,
    Section,
    command_of,
    describe_images,
    describe_size,
    describe_time,
    judge,
    runs_of,
    time_of,
)
from .experiment import EVALUATED, Experiment, Measure, Recipe, data_of, extend_table, read_numbers
from .ladder import ladder_table

__all__ = ["EXPERIMENT", "PAPER", "flow_claims", "learn_core", "measure"]

#: Section 4.1, the tables of figure 5.
PAPER: dict[str, dict[str, dict[str, float]]] = {
    "mnist": {
        "one_against_100_steps": {"psnr": 32.4, "lpips": 0.006, "mse": 3.0e-4},
        "inversion": {"psnr": 31.6, "lpips": 0.008},
    },
    "celeba": {
        "one_against_100_steps": {"psnr": 32.9, "lpips": 0.007, "mse": 3.0e-4},
        "inversion": {"psnr": 33.4, "lpips": 0.006},
        "inception_fid": {
            "1 step": 405,
            "10 steps": 152,
            "100 steps": 127,
            "100 in one": 131,
            "1000 in one": 123,
        },
    },
}
#: How our comparison differs from the authors'.
LOOP = (
    "another g and core; both loops stay in coordinates, but their code's collapse takes k₂ for "
    "k₃, which is not RK4"
)
SAMPLES = {"mnist-matching": 10_000, "mnist-flow": 10_000, "celeba-flow": 1_000}


def measure(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
    samples: int = 10_000,
) -> dict[str, Any]:
    """Evaluate a flow, and put the paper's numbers for its data beside it."""
    result = evaluate_run(run, out, root, samples, say)
    data = data_of(result, samples)
    return extend_table(result, {"data": data, "paper": PAPER.get(data["name"], {})})


# -- a learned core ------------------------------------------------------------------------


class _Coordinates:
    """Coordinates as data to train on."""

    def __init__(self, z: Tensor) -> None:
        self.z = z

    def __len__(self) -> int:
        return len(self.z)

    def batch(self, index: Tensor) -> tuple[Tensor]:
        return (self.z[index],)


def _matching_loss(family: TimeLowRank, batch: tuple[Tensor], draw: Draw) -> dict[str, Tensor]:
    """‖D_t((1−t)z₀ + t z₁) − z₁‖², the induced flow matching loss of a prediction of z₁."""
    (z1,) = batch
    z0, t = draw.normal(z1), draw.uniform(z1[:, 0])
    zt = (1 - t[:, None]) * z0 + t[:, None] * z1
    return {"induced": (family(t)(zt) - z1).square().mean()}


def learn_core(say: Say, name: str = "mnist-flow", samples: int = 10_000) -> dict[str, Any]:
    """Train a time-dependent core on the leading coordinates of a shipped flow, and measure it.

    Its one-step samples are compared with those of the closed form without detail.
    """
    run = open_run(name)
    model: Flow = run.model
    source: Any = load_data(run)
    r = model.config.rank
    with torch.no_grad():
        index = torch.arange(len(source.train)).split(500)
        z = torch.cat([model.target.coordinates(source.train.batch(i).x)[:, :r] for i in index])
    family = TimeLowRank(r, r)
    training = Training(steps=600, batch=512, rate=5e-3, ema=0.99, tensorboard=False)
    say("learning a core")
    result = fit(family, _matching_loss, _Coordinates(z), training)
    core = Flow(model.source, Prediction(Leading(family, model.target.dim)), model.target)
    say("comparing it with the closed form")
    with torch.no_grad():
        x = torch.cat([source.test.batch(i).x for i in torch.arange(10_000).split(1000)])
        row = {
            "training_seconds": round(result.seconds),
            "induced_loss": result.losses["induced"],
            **_compare_cores(core, model, x, samples, r),
        }
    return {f"learned core on {name}": row}


def _compare_cores(core: Flow, model: Flow, x: Tensor, samples: int, r: int) -> dict[str, Any]:
    noise = model.noise(64, 7)
    row: dict[str, Any] = {}
    for steps in (10, 100, 1000):
        gap = core.collapse("rk4", steps)(noise) - core.integrate(noise, "rk4", steps)
        row[f"one_against_{steps}_mse_float32"] = float(gap.square().mean())
    f, closed = core.collapse("rk4", 1000), model.collapse("rk4", 1000)
    leads = torch.arange(core.target.dim) < r

    def leading(noise: Tensor) -> Tensor:
        return closed((noise.flatten(1) * leads).reshape_as(noise))

    def fid(g: Callable[[Tensor], Tensor]) -> float:
        some = torch.cat([g(core.noise(500, 1000 + i)) for i in range(samples // 500)])
        return frechet(digit_features(some.clamp(0, 1)), digit_features(x))

    row |= {
        "fid_one_step": fid(f),
        "rank": f.rank(),
        "mse_to_the_closed_form": float((f(noise) - leading(noise)).square().mean()),
        "fid_closed_form": fid(leading),
    }
    double, exact = core.double(), noise.double()
    gap = double.collapse("rk4", 100)(exact) - double.integrate(exact, "rk4", 100)
    return {**row, "one_against_100_mse_float64": float(gap.square().mean())}


# -- claims ------------------------------------------------------------------------------


def flow_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Section 4.1 and figure 5, for one evaluated flow."""
    rows = [*_step_rows(row), *_inversion_rows(row)]
    claims = [
        Claim(f"{row['run']}: {what}", said, ours, verdict, protocol, time, command)
        for what, said, ours, verdict, protocol in rows
    ]
    return claims + _fid_claims(row, time, command)


#: What is claimed, the paper's number, ours, how they compare, and by which protocol.
Row = tuple[str, str, str, str, str]


def _step_rows(row: Mapping[str, Any]) -> list[Row]:
    """One step against 100."""
    once, through = (row["one_against_many"][n] for n in ("100", "100 through data"))
    said = row.get("paper", {}).get("one_against_100_steps")
    what = "one step against 100"
    head = (
        f"{what} that go through g and g⁻¹ each time, mean squared difference",
        "–",
        f"{through['mse_float32']:.0e} ({through['mse_float64']:.0e} in float64)",
        SILENT,
        f"the same noise, {through['samples']} samples{describe_size(row)}",
    )
    mse, psnr = once["mse_float32"], once["psnr"]
    shown = f"{mse:.0e} ({once['mse_float64']:.0e} in float64)"
    if said is None:
        how = "the same noise, 64 samples; the loop stays in coordinates"
        rows = [
            head,
            (f"{what}, mean squared difference", "–", shown, SILENT, how),
            (f"{what}, PSNR in dB", "–", f"{psnr:.1f}", SILENT, how),
        ]
        if "lpips" in once:
            rows.append((f"{what}, LPIPS", "–", f"{once['lpips']:.0e}", SILENT, how))
        return rows
    how = f"no: {LOOP}; the paper does not say how many samples{describe_size(row)}"
    verdicts = judge(mse, said["mse"], less=True), judge(psnr, said["psnr"], 0.05)
    rows = [
        head,
        (f"{what}, mean squared difference", f"{said['mse']:.0e}", shown, verdicts[0], how),
        (f"{what}, PSNR in dB", f"{said['psnr']:.1f}", f"{psnr:.1f}", verdicts[1], how),
    ]
    lpips = f"{said['lpips']:.3f}"
    if "lpips" not in once:
        return [*rows, (f"{what}, LPIPS", lpips, _unmeasured(row), MISSING, "–")]
    verdict = judge(once["lpips"], said["lpips"], 0.0005, less=True)
    return [*rows, (f"{what}, LPIPS", lpips, f"{once['lpips']:.0e}", verdict, how)]


def _inversion_rows(row: Mapping[str, Any]) -> list[Row]:
    inverse, said = row["inversion"], row.get("paper", {}).get("inversion")
    part = describe_images(row)
    how, verdict, papers = f"rank {inverse['rank']}, {part}", SILENT, ("–", "–")
    if said is not None:
        how = (
            f"no: ours is at the rank of B, {inverse['rank']}; the paper's 16 is the rank of A_t, "
            f"and its B = I + low rank is generically full; {part}{describe_size(row)}"
        )
        verdict, papers = APART, (f"{said['psnr']:.1f}", f"{said['lpips']:.3f}")
    psnr = f"{inverse['psnr_mean_over_images']:.1f}"
    rows = [("inversion f(f†(x)), PSNR in dB", papers[0], psnr, verdict, how)]
    what = "inversion f(f†(x)), LPIPS"
    if "lpips_alex" in inverse:
        how += "; AlexNet, the paper does not say"
        rows.append((what, papers[1], f"{inverse['lpips_alex']:.3f}", verdict, how))
    elif said is not None:
        rows.append((what, papers[1], _unmeasured(row), MISSING, "–"))
    return rows


def _unmeasured(row: Mapping[str, Any]) -> str:
    return f"not measured here: {row.get('lpips', 'no LPIPS weights')}"


def _fid_claims(row: Mapping[str, Any], time: str, command: str) -> list[Claim]:
    data, fid = row["run"], row["fid"]
    paper = row.get("paper", {}).get("inception_fid")
    what = f"{data}: FID in one step (1,000)"
    if fid.get("features") is None:
        why = "not measured here: no weights of a network for features"
        known = [] if paper is None else [f"{paper['1000 in one']}"]
        return [Claim(what, said, why, MISSING, "–", time, command) for said in known]
    how = f"{fid['features']}, {fid['samples']:,} samples, {fid['reference']}"
    if paper is None:
        once = fid["one step (1000 of rk4)"]
        shown = f"{once:.3g} (real training images: {fid['real_training_images']:.2g})"
        return [Claim(what, "–", shown, SILENT, how, time, command)]
    return [
        Claim(f"{data}: {what}", said, ours, verdict, protocol, time, command)
        for what, said, ours, verdict, protocol in _fid_rows(row, how)
    ]


def _fid_rows(row: Mapping[str, Any], how: str) -> list[Row]:
    """Figure 5's distances on CelebA."""
    fid = row["fid"]
    one = {n: fid[f"one step ({n} of rk4)"] for n in ("100", "1000")}
    euler, full = fid["full steps"]["euler"], fid["full steps"]["rk4"]
    other = f"no: the paper takes Inception's features, we {how}"
    apart = abs(one["100"] - full["100"])
    real = fid["real_training_images"]
    far = f"{one['1000']:.1f} in other features (real training images: {real:.1f})"
    steps = [
        (
            f"FID, {n} full step{'s' if n != '1' else ''}",
            said,
            f"{full[n]:.1f} of RK4, {euler[n]:.1f} of Euler, in other features",
            APART,
            other,
        )
        for n, said in (("1", "405"), ("10", "152"), ("100", "127"))
    ]
    less, gain = (
        "FID of one step less that of as many full ones",
        "FID that 1,000 steps gain over 100, both in one",
    )
    return [
        *steps,
        ("FID, one step (100)", "131", f"{one['100']:.1f} in other features", APART, other),
        ("FID, one step (1,000)", "123", far, APART, other),
        (less, "4 (131 − 127)", f"{apart:.2g}", APART, other),
        (gain, "8 (131 − 123)", f"{one['100'] - one['1000']:.2g}", APART, other),
    ]


def flow_section(found: Found) -> Section:
    """Section 4.1, figure 5 and appendix F."""
    rows = found["flow"]
    claims: list[Claim] = []
    notes: list[str] = []
    for name, row in runs_of(rows, "one_against_many"):
        command = command_of(found, "flow", f"linearizer evaluate {name}")
        claims += flow_claims(row, time_of(found, rows, name), command)
        notes += row["data"]["notes"]
    for name, row in runs_of(rows, "one_against_100_mse_float32"):
        mse = row["one_against_100_mse_float32"]
        claim = Claim(
            f"{name}, time-dependent as the paper's: one step against 100",
            "3e-04",
            f"{mse:.0e} ({row['one_against_100_mse_float64']:.0e} in float64)",
            judge(mse, 3e-4, less=True),
            f"no: rank {row['rank']}, prediction of x₁, g given; the loop stays in coordinates",
            describe_time(row["training_seconds"] / 60, rows),
            "python -m paper record flow learned",
        )
        claims.append(claim)
    collapse = found.get("collapse", {})
    for steps, row in collapse.get("structured", {}).items():
        claim = Claim(
            f"appendix F: {int(steps):,} RK4 steps of a core of rank {collapse['rank']} at "
            f"d = {collapse['d']:,} in one operator",
            "derived",
            f"{row['relative_error_to_the_loop']:.0e} relative error to the loop",
            SILENT,
            "float32",
            describe_time(row["seconds"] / 60, collapse),
            "python benchmarks/collapse.py",
        )
        claims.append(claim)
    return Section("flow", "One-step flows (section 4.1, figure 5, appendix F)", "", claims, notes)


# -- tables of docs/flow.md ----------------------------------------------------------------


#: The paper's cells, for MNIST and CelebA.
_SAID = {
    "images": ("1×32×32", "3×64×64"),
    "rank of the core": ("16", "16"),
    "FID features": ("", "Inception"),
    "FID, one step (1,000 RK4 steps collapsed)": ("", "123"),
    "FID, one step (100)": ("", "131"),
    "FID, 1 / 2 / 5 / 10 / 100 full steps of Euler": ("", "405 / – / – / 152 / 127"),
    "one step against 100: MSE in float32 / float64": ("3e-4", "3e-4"),
    "one step against 100: PSNR / LPIPS": ("32.4 dB / .006", "32.9 dB / .007"),
    "inversion f(f†(x)), all test images: PSNR / LPIPS (AlexNet)": (
        "31.6 dB / .008",
        "33.4 dB / .006",
    ),
}


def _quality_cells(f: Mapping[str, Any]) -> dict[str, str]:
    fid, many, inverse = f["fid"], f["one_against_many"], f["inversion"]
    distances = {
        "FID, one step (1,000 RK4 steps collapsed)": "one step (1000 of rk4)",
        "FID, one step (100)": "one step (100 of rk4)",
        "FID, one step (10)": "one step (10 of rk4)",
        "FID of reconstructed test images": "reconstructed_test_images",
        "FID of real training images": "real_training_images",
    }
    steps = {
        f"one step against {int(n):,}: MSE in float32 / float64": (
            f"{many[n]['mse_float32']:.0e} / {many[n]['mse_float64']:.0e}"
        )
        for n in ("10", "100", "1000")
    }
    return {
        "images": "×".join(map(str, f["data"]["shape"])),
        "rank of the core": str(f["rank"]),
        "parameters": f"{f['parameters']:,}",
        "FID features": fid["features"],
        **{label: f"{fid[key]:.3g}" for label, key in distances.items()},
        **{
            f"FID, 1 / 2 / 5 / 10 / 100 full steps of {name}": " / ".join(
                f"{v:.3g}" for v in fid["full steps"][solver].values()
            )
            for solver, name in (("euler", "Euler"), ("rk4", "RK4"))
        },
        **steps,
        "one step against 100 through data: MSE in float32 / float64": (
            f"{many['100 through data']['mse_float32']:.0e} / "
            f"{many['100 through data']['mse_float64']:.0e}"
        ),
        "one step against 100: PSNR / LPIPS": (
            f"{many['100']['psnr']:.0f} dB / {many['100']['lpips']:.0e}"
        ),
        "inversion f(f†(x)), all test images: PSNR / LPIPS (AlexNet)": (
            f"{inverse['psnr_mean_over_images']:.1f} dB / {inverse['lpips_alex']:.3f}"
        ),
        "the same, PSNR of the mean error": f"{inverse['psnr_of_mean_error']:.1f} dB",
    }


def _other_cells(f: Mapping[str, Any]) -> dict[str, str]:
    times, moments = f["times"], f["coordinates"]
    label = "one step for an image; 100 steps in coordinates / through data"
    once = times["collapse of 1000"]
    return {
        "round trip of g in float32: test images / noise images / normal coordinates": (
            " / ".join(f"{v:.0e}" for v in f["round_trip"].values())
        ),
        "second and fourth moment of coordinates (normal: 1 and 3)": (
            f"{moments['second_moment']:.2f}, {moments['fourth_moment']:.2f}"
        ),
        **{
            f"{batch}: {label}": (
                f"{1e3 * times[batch]['one_step_seconds']:.2g} ms; "
                f"{times[batch]['coordinates_over_one_step']:.0f}× / "
                f"{times[batch]['data_over_one_step']:.0f}×"
            )
            for batch in ("batch 1", "batch 64")
        },
        "batch 1, exported to ONNX: one step; 100 steps in coordinates / through data": (
            f"{1e3 * times['batch 1']['exported_seconds']:.2g} ms; "
            f"{times['batch 1']['coordinates_over_exported']:.0f}× / "
            f"{times['batch 1']['data_over_exported']:.0f}×"
        ),
        "collapse of 1,000 steps: time, size of B": (
            f"{once['seconds']:.2g} s, {once['operator_mib']:.2g} MiB"
        ),
    }


def flow_table() -> str:
    """Both shipped flows beside the paper."""
    found = read_numbers("flow")
    matching, digits, faces = (
        {**_quality_cells(found[name]), **_other_cells(found[name])} for name in SAMPLES
    )
    lines = [
        "| | mnist-matching | mnist-flow | paper, MNIST | celeba-flow | paper, CelebA |",
        "|---|---|---|---|---|---|",
    ]
    for label in digits:
        mnist, celeba = _SAID.get(label, ("", ""))
        ours = f"{matching[label]} | {digits[label]} | {mnist} | {faces[label]} | {celeba}"
        lines.append(f"| {label} | {ours} |")
    core = found["learned core on mnist-flow"]
    return "\n".join(lines) + (
        f"\n\nA core of rank {core['rank']} learned by flow matching on the coordinates of "
        f"mnist-flow without detail ({core['training_seconds']} s): FID "
        f"{core['fid_one_step']:.3g} in one step, {core['fid_closed_form']:.3g} for the closed "
        f"form there; one step against 100 {core['one_against_100_mse_float32']:.0e} (float32) and "
        f"{core['one_against_100_mse_float64']:.0e} (float64), mean squared difference to the "
        f"closed form's samples {core['mse_to_the_closed_form']:.1e}.\n"
    )


def unet_table() -> str:
    """The U-Net of ``paper/unet_flow.py``, which is trained on pixels."""
    unet = read_numbers("unet_flow")
    steps = list(unet["fid"])
    return (
        f"| U-Net, {unet['parameters']:,} parameters, {unet['training_seconds']:.0f} s of training "
        f"| {' | '.join(f'{s} steps' for s in steps)} |\n|---{'|---' * len(steps)}|\n"
        f"| FID ({unet['samples']:,} samples) | "
        + " | ".join(f"{unet['fid'][s]:.3g}" for s in steps)
        + " |\n"
    )


def _measure(samples: int) -> Measure:
    return lambda run, out, root, say, minutes: measure(run, out, root, say, samples)


def _record(name: str) -> Callable[[Say], dict[str, Any]]:
    return lambda say: {name: measure(name, EVALUATED / name, None, say, SAMPLES[name])}


def _record_times(say: Say) -> dict[str, Any]:
    """Time the shipped flows anew, one after the other; their other numbers stay."""
    found, rows = read_numbers("flow"), {}
    for name in SAMPLES:
        say(name)
        model: Flow = open_run(name).model
        with torch.no_grad():
            rows[name] = {**found[name], "times": measure_times(model, model.collapse())}
    return rows


_MNIST = {"data": {"name": "mnist", "size": 32}}
_CELEBA = {"data": {"name": "celeba", "size": 64}}

EXPERIMENT = Experiment(
    name="flow",
    title="One-step flows",
    file="flow",
    claims=flow_claims,
    section=flow_section,
    recipes={
        "here": (
            Recipe("mnist-flow", "flow", "mnist", {}, _measure(10_000)),
            Recipe("celeba-flow", "flow", "celeba", {}, _measure(1_000)),
        ),
        "paper": (
            Recipe("mnist-flow", "flow", "paper", _MNIST, _measure(10_000)),
            Recipe("celeba-flow", "flow", "paper", _CELEBA, _measure(10_000)),
        ),
        "tiny": (Recipe("digits-flow", "flow", "digits", {}, _measure(100)),),
    },
    records={
        **{name: _record(name) for name in SAMPLES},
        "learned": learn_core,
        "times": _record_times,
    },
    tables={
        ("flow.md", "flow"): flow_table,
        ("flow.md", "unet"): unet_table,
        ("flow.md", "ladder"): ladder_table,
    },
)
