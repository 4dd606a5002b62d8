"""The tables of README.md and docs/, and docs/results.md, from the JSON files beside this script.

python benchmarks/readme_table.py     rewrites them; a test keeps documents and files equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import HERE

SCORES = ("factor_vae", "sap", "disentanglement", "completeness", "informativeness")
README, DOCS = HERE.parent / "README.md", HERE.parent / "docs"


def read(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def rows() -> list[tuple[str, str, str]]:
    tour, fit = read("quickstart"), read("finite_fit")
    flow, short = read("flow")["mnist-flow"], read("short_flow")
    project = read("projector")["mnist-projector"]
    style = read("style")["styles"]
    unet, collapse = read("unet_flow")["fid"], read("collapse")
    actions = read("structured_operators")["actions"]
    memory, glow = read("memory_depth")["rows"], read("glow_step")["cases"]
    few, many = memory[0], memory[-1]
    loop = read("training_loop")["rows"]
    structured = [a["structured_12288"] for a in actions.values()]
    dense = [
        actions[a]["dense_12288_seconds_extrapolated"] for a in ("product", "inverse", "svd16")
    ]
    ratios = {
        name: " and ".join(f"{c['rows'][name]['time_over_ours']:.2f}×" for c in glow)
        for name in glow[0]["rows"]
    }
    return [
        (
            "one-step flow on 8×8 digits: 1,000 RK4 steps in one; every law",
            "`make quickstart`",
            f"after {tour['training_seconds']:.0f} s of training: mean squared difference to the "
            f"loop {tour['one_against_1000_steps_mse']:.0e}, worst relative error of a law "
            f"{tour['worst_law_float64']:.0e} in float64, {tour['worst_law_float32']:.0e} in "
            "float32",
        ),
        (
            "MNIST 32×32, shipped: one step against 100 (paper: 3e-4); inversion at rank "
            f"{flow['rank']} (paper: 31.6 dB); FID in our classifier's features (real digits: "
            f"{flow['fid']['real_training_images']:.2g})",
            "`linearizer evaluate flow mnist-flow`",
            f"MSE {flow['one_against_many']['100']['mse_float32']:.0e}; "
            f"{flow['inversion']['psnr_mean_over_images']:.1f} dB on 10,000 test digits; "
            f"{flow['fid']['one step (1000 of rk4)']:.2g}",
        ),
        (
            "projector on MNIST, shipped: test digits at rank "
            f"{project['rank']} of {project['dim']}; f(f(x)) against f(x) on digits, noise up to "
            "σ = 10, photos and others; projected noise that our classifier is sure of",
            "`linearizer evaluate projector`",
            f"{project['reconstruction']['psnr_mean_over_images']:.1f} dB; at most "
            f"{max(project['idempotency_float32'].values()):.0e} in float32, "
            f"{max(project['idempotency_float64'].values()):.0e} in float64; "
            f"{project['projected']['noise 1']['share_confident']:.0%} at σ = 1, in "
            f"{sum(n > 0 for n in project['projected']['noise 1']['classes'])} classes (test "
            f"digits: {project['projected']['test digits as they are']['share_confident']:.0%})",
        ),
        (
            f"styles on {style['photos']} held-out photos, shipped: LPIPS to the style network "
            "(best linear filter), mean of four; undone; time of the network over ours",
            "`linearizer evaluate style`",
            f"{mean(style, 'ours'):.3f} ({mean(style, 'linear'):.3f}); at least "
            f"{min(r['psnr'] for r in style['undo'].values()):.0f} dB; "
            f"{style['seconds']['256']['network_over_ours']:.1f}× at 256×256",
        ),
        *forecast_row(),
        *dynamics_row(),
        *attributes_row(),
        *distilled_row(),
        (
            "the flow's training for "
            f"{short['training_cpu_minutes']:.0f} CPU minutes at rank {short['rank']}; a U-Net "
            "flow of that training time at 1 and 100 steps",
            "`python benchmarks/short_flow.py`, `python benchmarks/unet_flow.py`",
            f"FID {short['fid']['one step (1000 of rk4)']:.2g} in one step, "
            f"{short['inversion']['psnr_mean_over_images']:.1f} dB; U-Net {unet['1']:.0f} and "
            f"{unet['100']:.0f}",
        ),
        (
            "RK4 steps of a rank-16 core at d = 12,288 collapsed into one operator: 100, 1,000",
            "`python benchmarks/collapse.py`",
            " and ".join(
                f"{r['seconds']:.2g} s, {r['peak_mib']:.0f} MiB"
                for r in collapse["structured"].values()
            )
            + "; the dense way needs four products for each step, of "
            + f"{collapse['dense_12288_one_product']['seconds']:.0f} s each (measured)",
        ),
        (
            "αI + UVᵀ at d = 12,288, rank 16: product, inverse, 16 singular triples",
            "`python benchmarks/structured_operators.py`",
            " / ".join(f"{1000 * s['seconds']:.0f}" for s in structured)
            + " ms and "
            + " / ".join(f"{s['peak_mib']:.0f}" for s in structured)
            + " MiB; the dense way, extrapolated from d ≤ 2,048, "
            + " / ".join(f"{s:.0f}" for s in dense)
            + f" s and {actions['product']['dense_12288_matrix_mib']:.0f} MiB for each matrix",
        ),
        (
            f"memory of a training step of glow, {few['blocks']} → {many['blocks']} blocks",
            "`python benchmarks/memory_depth.py`",
            f"{few['save_memory_mib']:.0f} → {many['save_memory_mib']:.0f} MiB with "
            f"`save_memory=True`, {few['plain_mib']:.0f} → {many['plain_mib']:.0f} MiB "
            f"without; a step then takes {ratios['linearizer, save_memory']} the time",
        ),
        (
            "training step of glow on 64×1×32×32, peers' time over ours at "
            + " and ".join(str(c["hidden"]) for c in glow)
            + " channels",
            "`python benchmarks/glow_step.py`",
            f"FrEIA {ratios['FrEIA']}, normflows {ratios['normflows']}; the conditioners alone, "
            f"the same in all three, {ratios['conditioners alone']}",
        ),
        (
            "`fit`, the training loop, over a bare hand-written one; a training step of MNIST over "
            "the loading of its batch of 256",
            "`python benchmarks/training_loop.py`",
            " and ".join(f"{c['fit_over_bare']:.3f}×" for c in loop)
            + " (mlp and glow); "
            + f"{loop[1]['training_over_loader']:,.0f}×",
        ),
        (
            "64 random labels ℝ⁸ → ℝ³, fitted (theorem H.5)",
            "`python examples/finite_fit.py`",
            f"largest error {fit['sup_error']:.0e}",
        ),
    ]


def forecast_row() -> list[tuple[str, str, str]]:
    found = read("weather")
    horizons = ("96", "192", "336", "720")

    def line(mse: list[float]) -> str:
        return " / ".join(f"{v:.3f}" for v in mse) + f", mean {sum(mse) / len(mse):.3f}"

    rows = {k: line([v[h]["mse"] for h in horizons]) for k, v in found["rows"].items()}
    paper = line(found["published_mse"]["Linearizer (the paper)"]["mse"])
    held = [
        found["rows"][k][h]["intervals"]["coverage"] for k in ("strict", "daily") for h in horizons
    ]
    return [
        (
            "weather, look-back 96, MSE at 96 / 192 / 336 / 720 steps: one fixed A "
            f"(paper: {paper}), a core that follows the day, PatchTST here; 90% intervals",
            "`linearizer evaluate weather`",
            f"{rows['strict']}; {rows['daily']}; {rows['PatchTST, small']}; "
            f"hold {min(held):.0%} to {max(held):.0%}",
        )
    ]


def dynamics_row() -> list[tuple[str, str, str]]:
    found = read("dynamics")

    def line(name: str) -> str:
        row = found[name]
        error = {k: v["at 10"] for k, v in row["error"].items()}
        linear = min(v for k, v in error.items() if "DMD" in k)
        return (
            f"{name} {error['ours']:.2g} ({linear:.2g}; {error['neural ODE']:.2g}), "
            f"{row['rollout_over_ours']['neural ODE']:.0f}×"
        )

    return [
        (
            "motion in continuous time, shipped: error at ten training horizons in standard "
            "deviations (best of DMD and EDMD; neural ODE), and the neural ODE's time for 1,000 "
            "states over ours",
            "`linearizer evaluate dynamics pendulum`",
            "; ".join(line(name) for name in ("pendulum", "duffing")),
        )
    ]


def mean(style: dict, way: str) -> float:
    rows = [row[way]["lpips"] for row in style["fidelity"].values()]
    return sum(rows) / len(rows)


def table() -> str:
    lines = ["| what | command | measured |", "|---|---|---|"]
    return "\n".join(lines + [f"| {a} | {b} | {c} |" for a, b, c in rows()]) + "\n"


def peers_table() -> str:
    """What was measured beside other packages, for the page that compares with them."""
    lines = ["| compared | ours | theirs | command |", "|---|---|---|---|"]
    for case in read("glow_step")["cases"]:
        took = {name: f"{row['median_ms']:.0f} ms" for name, row in case["rows"].items()}
        lines.append(
            f"| training step of a glow of {case['blocks']} blocks, {case['hidden']} channels, on "
            f"64 grey images of 32×32 | {took['linearizer']} | FrEIA {took['FrEIA']}, normflows "
            f"{took['normflows']}, the conditioners alone {took['conditioners alone']} | "
            "`python benchmarks/glow_step.py` |"
        )
    lines += [
        f"| {name} | {row['ours_us']:,.0f} µs | {row['by_hand_us']:,.0f} µs | "
        "`python benchmarks/algebra_overhead.py` |"
        for name, row in read("algebra_overhead")["rows"].items()
    ]
    unet, short = read("unet_flow")["fid"], read("short_flow")["fid"]
    fids = ", ".join(f"{unet[n]:.3g} in {n}" for n in ("1", "10", "100"))
    lines += [
        "| samples of MNIST after about 8 minutes of training: FID in our classifier's features | "
        f"{short['one step (1000 of rk4)']:.2g} in one step | U-Net by flow matching: {fids} | "
        "`python benchmarks/short_flow.py`, `python benchmarks/unet_flow.py` |",
        "",
        "Error at ten training horizons, in standard deviations of the data, and the time of 1,000 "
        "states over ours (`python benchmarks/dynamics.py`):",
        "",
        "| | ours | best of DMD and EDMD (PyDMD, deeptime) | neural ODE (torchdiffeq) |",
        "|---|---|---|---|",
    ]
    for system, row in read("dynamics").items():
        if system == "machine":
            continue
        end = {name: e["at 10"] for name, e in row["error"].items()}
        best = min((name for name in end if "DMD" in name), key=end.__getitem__)
        over = row["rollout_over_ours"]
        lines.append(
            f"| {system} | {end['ours']:.2g} | {end[best]:.2g}, {over[best]:.2g}× ({best}) "
            f"| {end['neural ODE']:.2g}, {over['neural ODE']:.3g}× |"
        )
    return "\n".join(lines) + "\n"


def loop_table() -> str:
    """What the training loop and its options cost."""
    cases = read("training_loop")["rows"]
    names = [f"{c['g']} on {'×'.join(map(str, c['image']))}" for c in cases]
    lines = [
        ("time of a step, ms", [f"{c['milliseconds']['fit']:.0f}" for c in cases]),
        ("`fit` over a bare loop", [f"{c['fit_over_bare']:.3f}×" for c in cases]),
        ("step over its data", [f"{c['training_over_loader']:,.0f}×" for c in cases]),
        ("`--ema 0.999`", [f"{c['ema_over_plain']:.2f}×" for c in cases]),
        (
            "`--compile` (after its first step)",
            [f"{c['compile_over_plain']:.2f}×, {c['compile_first_seconds']:.0f} s" for c in cases],
        ),
        ("`--precision bf16`", [f"{c['bf16_over_plain']:.1f}×" for c in cases]),
    ]
    head = [f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    return "\n".join(head + [f"| {a} | {' | '.join(b)} |" for a, b in lines]) + "\n"


def kept_line() -> str:
    """What it is worth to keep freed memory."""
    rows = read("kept_memory")["rows"]
    parts = [
        f"{row['times_as_fast']:.2f}× ({name}; {row['peak_mib'][1]:,.0f} MiB at most without, "
        f"{row['peak_mib'][0]:,.0f} with it)"
        for name, row in rows.items()
    ]
    return (
        f"CPU time of a training step without it, over that with it: {', '.join(parts)}; "
        "`python benchmarks/kept_memory.py`.\n"
    )


def boosting_line() -> str:
    """Our boosted trees beside scikit-learn's."""
    rows = read("boosting")["rows"].values()
    again = [row["scikit_learn_with_another_random_state"] for row in rows]

    def differ(parts: Any) -> str:
        told = max(p["test_samples_told_otherwise"] for p in parts)
        shares = max(p["largest_difference_of_an_importance"] for p in parts)
        return f"at most {told} of 5,000 test samples and {shares:.4f} of an importance"

    fast = [row["times_as_fast"] for row in rows]
    return (
        f"Against scikit-learn's trees: {min(fast):.1f} to {max(fast):.1f} times as fast; they "
        f"differ in {differ(rows)}, scikit-learn's own with another `random_state` in "
        f"{differ(again)} (three encoders, two factors; `python benchmarks/boosting.py`).\n"
    )


def flow_table() -> str:
    """Both shipped flows beside the paper."""
    flows = [read("flow")[name] for name in ("mnist-flow", "celeba-flow")]

    def row(name: str, pick: Any, paper: tuple[str, str] = ("", "")) -> str:
        cells = [c for flow, said in zip(flows, paper, strict=True) for c in (pick(flow), said)]
        return f"| {name} | {' | '.join(cells)} |"

    def fid(key: str) -> Any:
        return lambda f: f"{f['fid'][key]:.3g}"

    lines = [
        "| | mnist-flow | paper, MNIST | celeba-flow | paper, CelebA |",
        "|---|---|---|---|---|",
        row("images", lambda f: "×".join(map(str, f["data"]["shape"])), ("1×32×32", "3×64×64")),
        row("rank of the core", lambda f: str(f["rank"]), ("16", "16")),
        row("parameters", lambda f: f"{f['parameters']:,}"),
        row("FID features", lambda f: f["fid"]["features"], ("", "Inception")),
        row("FID, one step (1,000 RK4 steps collapsed)", fid("one step (1000 of rk4)"),
            ("", "123")),
        row("FID, one step (100)", fid("one step (100 of rk4)"), ("", "131")),
        row("FID, one step (10)", fid("one step (10 of rk4)")),
        row("FID, 10 steps in a loop", fid("10 steps in a loop"), ("", "152")),
        row("FID of reconstructed test images", fid("reconstructed_test_images")),
        row("FID of real training images", fid("real_training_images")),
    ]  # fmt: skip
    for steps in ("10", "100", "1000"):
        one = "one_against_many"
        lines.append(
            row(f"one step against {int(steps):,}: MSE in float32 / float64",
                lambda f, n=steps, k=one: f"{f[k][n]['mse_float32']:.0e} / "
                                          f"{f[k][n]['mse_float64']:.0e}",
                ("3e-4", "3e-4") if steps == "100" else ("", ""))
        )  # fmt: skip
    inverse, trip = "inversion", "round_trip"
    lines += [
        row("one step against 100: PSNR / LPIPS",
            lambda f: f"{f['one_against_many']['100']['psnr']:.0f} dB / "
                      f"{f['one_against_many']['100']['lpips']:.0e}",
            ("32.4 dB / .006", "32.9 dB / .007")),
        row("inversion f(f†(x)), all test images: PSNR / LPIPS (AlexNet)",
            lambda f: f"{f[inverse]['psnr_mean_over_images']:.1f} dB / "
                      f"{f[inverse]['lpips_alex']:.3f}",
            ("31.6 dB / .008", "33.4 dB / .006")),
        row("the same, PSNR of the mean error",
            lambda f: f"{f[inverse]['psnr_of_mean_error']:.1f} dB"),
        row("round trip of g in float32: test images / noise images / normal coordinates",
            lambda f: " / ".join(f"{v:.0e}" for v in f[trip].values())),
        row("second and fourth moment of coordinates (normal: 1 and 3)",
            lambda f: f"{f['coordinates']['second_moment']:.2f}, "
                      f"{f['coordinates']['fourth_moment']:.2f}"),
    ]  # fmt: skip
    for batch in ("batch 1", "batch 64"):
        lines.append(
            row(f"{batch}: one step for an image; 100 steps in coordinates / through data",
                lambda f, b=batch: f"{1e3 * f['times'][b]['one_step_seconds']:.2g} ms; "
                f"{f['times'][b]['coordinates_over_one_step']:.0f}× / "
                f"{f['times'][b]['data_over_one_step']:.0f}×")
        )  # fmt: skip
    lines.append(
        row("collapse of 1,000 steps: time, size of B",
            lambda f: f"{f['times']['collapse of 1000']['seconds']:.2g} s, "
                      f"{f['times']['collapse of 1000']['operator_mib']:.2g} MiB")
    )  # fmt: skip
    core = read("flow")["learned core on mnist-flow"]
    return "\n".join(lines) + (
        f"\n\nA core of rank {core['rank']} learned by flow matching on the coordinates of "
        f"mnist-flow without detail ({core['training_seconds']} s): FID "
        f"{core['fid_one_step']:.3g} in one step, {core['fid_closed_form']:.3g} for the closed "
        f"form there; one step against 100 {core['one_against_100_mse_float32']:.0e} (float32) and "
        f"{core['one_against_100_mse_float64']:.0e} (float64), mean squared difference to the "
        f"closed form's samples {core['mse_to_the_closed_form']:.1e}.\n"
    )


def unet_table() -> str:
    unet = read("unet_flow")
    steps = list(unet["fid"])
    return (
        f"| U-Net, {unet['parameters']:,} parameters, {unet['training_seconds']:.0f} s of training "
        f"| {' | '.join(f'{s} steps' for s in steps)} |\n|---{'|---' * len(steps)}|\n"
        f"| FID ({unet['samples']:,} samples) | "
        + " | ".join(f"{unet['fid'][s]:.3g}" for s in steps)
        + " |\n"
    )


def collapse_table() -> str:
    """All steps as one operator, against products of dense matrices."""
    result = read("collapse")
    dense, one = result["dense_12288_extrapolated"], result["dense_12288_one_product"]["seconds"]
    lines = ["| RK4 steps | time | peak memory | rank of B − αI | relative error to the loop | "
             "dense: four products a step, one measured | ratio |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for steps, row in result["structured"].items():
        long = int(steps) * 4 * one
        lines.append(
            f"| {int(steps):,} | {row['seconds']:.2g} s | {row['peak_mib']:.0f} MiB | "
            f"{row['rank_of_B_minus_identity']} | {row['relative_error_to_the_loop']:.0e} | "
            f"{long:,.0f} s | {long / row['seconds']:,.0f} |"
        )
    row = result["structured"]["100"]
    return "\n".join(lines) + (
        "\n\nThe whole dense way, extrapolated from d ≤ 2,048: "
        f"{dense['seconds_per_step']:.0f} s a step. Pseudo-inverse of B: "
        f"{row['pinv_seconds']:.2g} s; a dense SVD, extrapolated, {dense['pinv_seconds']:,.0f} s.\n"
    )


def projector_table() -> str:
    """The shipped projector, the paper's recipe, and networks without the architecture."""
    found = read("projector")
    ours = found["mnist-projector"]
    names = {
        "mnist-projector": "mnist-projector (`best`)", "paper": "`paper`",
        "warm": "`warm`", "sharp": "`sharp`, reconstruction alone",
        "autoencoder": "plain autoencoder", "ign": "IGN, trained idempotency",
    }  # fmt: skip
    names = {key: name for key, name in names.items() if key in found}
    lines = [
        "| | rank or code | parameters | training, one core | PSNR on test digits | "
        "worst ‖f(f(x))−f(x)‖∞, float32 | the same, float64 | "
        "confident digits of projected noise (σ = 1) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    minutes = read("shipped")["mnist-projector"]["cpu_minutes"]
    for key, name in names.items():
        row = found[key]
        worst = row["idempotency_float32"]
        exact = row.get("idempotency_float64")
        noise = row["projected"]["noise 1"]
        classes = sum(n > 0 for n in noise["classes"])
        time = row["cpu_seconds"] / 60 if "cpu_seconds" in row else minutes
        lines.append(
            f"| {name} | {row.get('rank', row.get('code'))} | {row['parameters']:,} | "
            f"{time:.0f} min | {row['reconstruction']['psnr_mean_over_images']:.1f} dB | "
            f"{max(worst.values()):.0e} | "
            f"{'–' if exact is None else f'{max(exact.values()):.0e}'} | "
            f"{noise['share_confident']:.0%}, {classes} classes |"
        )
    own = found.get("ign", {}).get("projected", {}).get("noise of its training")
    if own is not None:
        count = sum(n > 0 for n in own["classes"])
        lines += ["", f"Of the noise that IGN was trained on it makes {own['share_confident']:.0%} "
                  f"confident digits, of {count} classes."]  # fmt: skip
    ranks = ours["reconstruction_by_rank"]
    lines += [
        "",
        f"| rank | {' | '.join(ranks)} |",
        "|---" * (1 + len(ranks)) + "|",
        "| PSNR | " + " | ".join(f"{r['psnr']:.1f}" for r in ranks.values()) + " |",
        "| principal components | "
        + " | ".join(f"{r['pca_psnr']:.1f}" for r in ranks.values())
        + " |",
        "",
        "| idempotency | " + " | ".join(ours["idempotency_float32"]) + " |",
        "|---" * (1 + len(ours["idempotency_float32"])) + "|",
    ]
    for key, name in names.items():
        rows = found[key]["idempotency_float32"]
        lines.append(f"| {name} | " + " | ".join(f"{v:.0e}" for v in rows.values()) + " |")
    auc = ours["anomaly_roc_auc"]
    lines += [
        "",
        "| test digits against | ROC-AUC of the score |",
        "|---|---|",
        *(f"| {name} | {value:.3f} |" for name, value in auc.items()),
        "",
        "| unknown pixels | " + " | ".join(next(iter(ours["gaps"].values()))) + " |",
        "|---" * (1 + len(next(iter(ours["gaps"].values())))) + "|",
        *(
            f"| {name}, PSNR there | " + " | ".join(f"{v:.1f} dB" for v in row.values()) + " |"
            for name, row in ours["gaps"].items()
        ),
    ]
    return "\n".join(lines) + "\n"


def weather_rows() -> str:
    """All forecasters beside published rows, and how often intervals held the truth."""
    from linearizer.evaluation import weather_table

    if not (HERE / "weather.json").exists():
        return "Not measured yet.\n"
    found = read("weather")
    lines = [weather_table(found), ""]
    ours = {name: found["rows"][name] for name in ("strict", "daily") if name in found["rows"]}
    horizons = sorted({h for rows in ours.values() for h in rows}, key=int)
    lines += [
        "| 90% intervals: share of true values inside | " + " | ".join(horizons) + " |",
        "|---" * (1 + len(horizons)) + "|",
        *(
            f"| {name} | "
            + " | ".join(
                f"{rows[h]['intervals']['coverage']:.1%}" if h in rows else "–" for h in horizons
            )
            + " |"
            for name, rows in ours.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def dynamics_table() -> str:
    """Error against horizon of each system, times, and steps never seen."""
    if not (HERE / "dynamics.json").exists():
        return "Not measured yet.\n"
    lines: list[str] = []
    for system, row in read("dynamics").items():
        if system == "machine":
            continue
        train, over = row["train"], row["rollout_over_ours"]
        lines += [
            f"**{system}**: {train['trajectories']} training trajectories of {train['rows']} "
            f"states over {row['horizon']:g} units of time, {row['cpu_seconds']:.0f} s of training "
            f"on one core; {row['test']['trajectories']} test trajectories. Error in standard "
            "deviations of the data.",
            "",
            "| | numbers | over 1 horizon | over 10 | at 1 | at 2 | at 5 | at 10 | at 10, median | "
            "1,000 states |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for name, e in row["error"].items():
            cells = [e["1 horizon"], e["10 horizons"], e["at 1"], e["at 2"], e["at 5"],
                     e["at 10"], e["at 10, median"]]  # fmt: skip
            seconds = row["rollout_seconds"].get(name)
            took = "–" if seconds is None else f"{1000 * seconds:.3g} ms, {over[name]:.3g} × ours"
            shown = " | ".join("> 1000" if v > 1000 else f"{v:.3g}" for v in cells)
            lines.append(f"| {name} | {row['parameters'][name]:,} | {shown} | {took} |")
        seen = row["steps_never_seen"]
        names = list(next(iter(seen.values())))
        lines += ["", f"| step | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
        for step, errors in seen.items():
            lines.append(f"| {step} | " + " | ".join(f"{v:.3g}" for v in errors.values()) + " |")
        law = row["group_law"]
        lines += [
            "",
            f"f(s+t) − f(s)f(t): {law['sum, float32']:.0e} in float32, "
            f"{law['sum, float64']:.0e} in float64; f(−t)f(t)(x) − x: "
            f"{law['inverse, float32']:.0e} and {law['inverse, float64']:.0e}. Restarted from a "
            f"state that was read off: {law['restarted, float64']:.0e}.",
            "",
        ]
        lines += [f"{name}: not measured, {why}.\n" for name, why in row["skipped"].items()]
    return "\n".join(lines).rstrip() + "\n"


def attributes_row() -> list[tuple[str, str, str]]:
    found, shipped = read("attributes"), read("shipped")
    faces, digits = found["celeba-attributes"], found["mnist-attributes"]
    smile = faces["erasure"]["of_each"]["Smiling"]
    return [
        (
            "40 attributes of faces, shipped, 8,000 training images (paper: 87.6% with the full "
            "set); a ResNet-18 of equal training time; the majority; ROC-AUC of a linear probe for "
            "smiling before and after it is projected out, and of one from other images than the "
            "projector; MNIST",
            "`linearizer evaluate attributes`",
            f"{faces['linearizer']['accuracy']:.1%} on {faces['data']['test_images']:,} test faces "
            f"after {shipped['celeba-attributes']['cpu_minutes']:.0f} minutes of one core; "
            f"{faces['resnet18']['accuracy']:.1%}; {faces['majority']['accuracy']:.1%}; "
            f"{smile['probe_roc_auc'][0]:.2f} and {smile['probe_roc_auc'][1]:.2f}, "
            f"{smile['fresh_probe_roc_auc'][1]:.2f}; "
            f"{digits['linearizer']['accuracy']:.1%}",
        )
    ]


def distilled_row() -> list[tuple[str, str, str]]:
    found = read("disentanglement")
    rows = found["rows"]
    parts = []
    for ending, words in (("", "from nothing"), (", same layers", "with the teacher's layers")):
        students = {n: f"Linearizer-{n}{ending}" for n in ("VAE", "FactorVAE", "BetaH")}
        r2 = [rows[student]["r2"] for student in students.values()]
        gaps = [abs(rows[student][column][0] - rows[teacher][column][0])
                for teacher, student in students.items() for column in SCORES]  # fmt: skip
        range_ = " to ".join(dict.fromkeys((f"{min(r2):.4f}", f"{max(r2):.4f}")))
        parts.append(f"{words}: {range_}, {max(gaps):.4f}")
    return [
        (
            "encoders of a VAE, a FactorVAE and a β-VAE of dSprites, distilled: R² on held-out "
            "images; largest difference of a FactorVAE, SAP or DCI score to the teacher's "
            f"({found['seeds']} seeds)",
            "`linearizer evaluate disentanglement`",
            "; ".join(parts),
        )
    ]


def attributes_table() -> str:
    """Accuracies, erasure, edits and null space of the shipped classifiers."""
    found, shipped = read("attributes"), read("shipped")
    lines = ["| | accuracy | balanced | parameters | training, one core |", "|---|---|---|---|---|"]
    for name, row in found.items():
        if name == "machine":
            continue
        minutes = shipped[name]["cpu_minutes"]
        where = f"{row['data']['name']}, {row['data']['test_images']:,} test images"
        ours, other, base = row["linearizer"], row["resnet18"], row["majority"]
        lines += [
            f"| **{name}** ({where}) | {ours['accuracy']:.2%} | {ours['balanced']:.2%} | "
            f"{row['parameters']:,} | {minutes:.0f} min |",
            f"| ResNet-18 | {other['accuracy']:.2%} | {other['balanced']:.2%} | "
            f"{other['parameters']:,} | {other['cpu_seconds'] / 60:.0f} min |",
            f"| majority | {base['accuracy']:.2%} | {base['balanced']:.2%} | | |",
        ]
        if "paper" in row:
            both = f"{row['paper']['linearizer']:.1%}, {row['paper']['resnet50']:.1%}"
            lines.append(f"| paper, full set: Linearizer, ResNet-50 | {both} | | | |")
    for name, row in found.items():
        if name == "machine":
            continue
        lines += [
            "",
            f"Erasure, {name}. Gap and projector from {row['erasure']['images'][0]:,} training "
            f"images, probes from {row['erasure']['images'][1]:,} of them; *fresh*: gap and "
            "projector from the other half. All numbers are of test images. Before → after:",
            "",
            "| erased | probe for it, ROC-AUC | its accuracy (majority) | fresh probe, ROC-AUC | "
            "own score, ROC-AUC | probes for the others, mean accuracy | most lost by another |",
            "|---|---|---|---|---|---|---|",
        ]
        for what, r in row["erasure"]["of_each"].items():
            auc, acc, own = r["probe_roc_auc"], r["probe_accuracy"], r["own_score_roc_auc"]
            others, (worst, loss) = r["others_probe_accuracy"], r["largest_loss_of_another"]
            fresh = r["fresh_probe_roc_auc"]
            lines.append(
                f"| {what} | {auc[0]:.3f} → {auc[1]:.3f} | {acc[0]:.1%} → {acc[1]:.1%} "
                f"({r['majority']:.1%}) | {fresh[0]:.3f} → {fresh[1]:.3f} | {own[0]:.3f} → "
                f"{own[1]:.3f} | {others[0]:.2%} → {others[1]:.2%} | {worst}, {loss:+.1%} |"
            )
    faces = found["celeba-attributes"]
    lines += [
        "",
        "| put on faces without it | others | score reached to | the ResNet-18 sees it: before → "
        "after | its other 39 outputs unchanged | pixels change by |",
        "|---|---|---|---|---|---|",
    ]
    for what, both in faces["edits"].items():
        for way in ("follow", "hold"):
            r = both[way]
            lines.append(
                f"| {what} | {way} | {r['score_error']:.0e} | {r['resnet18_saw_it']:.0%} → "
                f"{r['resnet18_sees_it']:.0%} | {r['resnet18_others_unchanged']:.1%} | "
                f"{r['pixel_change']:.3f} |"
            )
    null = faces["null_space"]
    lines += [
        "",
        f"Null space of the face classifier: {null['dimension']:,} dimensions. With "
        f"{null['amount']:g} of it replaced by noise, scores change by at most "
        f"{null['largest_change_of_a_score']:.0e} in float32 and "
        f"{null['largest_change_float64']:.0e} in float64, pixels by {null['pixel_change']:.2f}; "
        f"{null['resnet18_outputs_unchanged']:.1%} of the ResNet-18's outputs stay.",
    ]
    return "\n".join(lines) + "\n"


def disentanglement_table() -> str:
    """The rows of the paper's table, ours beside the paper's."""
    from linearizer.evaluation.disentanglement import COLUMNS, table

    found = read("disentanglement")
    rows = found["rows"]
    lines = [table(rows), "", f"Seeds of the scores: {found['seeds']}; distillations of each "
             f"teacher: {found['distillations']}.", ""]  # fmt: skip
    for name, row in rows.items():
        if not name.startswith("Linearizer-"):
            continue
        verdict = ""
        if "within_one_std_of_teacher" in row:
            outside = [k for k, ok in row["within_one_std_of_teacher"].items() if not ok]
            where = f"outside in {', '.join(outside)}" if outside else "within in all columns"
            verdict = f"; one standard deviation of the teacher: {where}"
        lines.append(
            f"- {name}: R² {row['r2']:.4f} on 5,000 held-out images (the least of an output "
            f"{row['least_r2_of_an_output']:.3f}), {row['steps']:,} steps in "
            f"{row['training_seconds'] / 60:.1f} minutes of one core{verdict}."
        )
    each = found["of_each_seed"]
    gaps = {
        (abs(each[name][seed][column] - each[teacher][seed][column]), COLUMNS[column])
        for teacher in ("VAE", "FactorVAE", "BetaH")
        for name in (f"Linearizer-{teacher}, same layers",)
        for seed in each[name]
        for column in COLUMNS
    }
    gap, column = max(gaps)
    lines += [
        "",
        f"Codes of “same layers” are the teacher's to rounding. Still, scores of a single seed "
        f"differ by up to {gap:.4f} ({column}): so much do boosted trees make of rounding, and a "
        "mean over few seeds is no finer than that.",
    ]
    return "\n".join(lines) + "\n"


def put(path: Path, mark: str, text: str) -> None:
    start, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    old = path.read_text()
    path.write_text(old.split(start)[0] + start + text + end + old.split(end)[1])
    print(f"wrote the table of {path.name}")


def style_table() -> str:
    """The shipped styles beside their networks; one photo alone; the paper's recipe."""
    found = read("style")
    ours = found["styles"]
    has = {key: found[key] for key in ("paper", "single") if key in found}
    minutes = read("shipped")["styles"]["cpu_minutes"]
    lines = [
        f"{ours['photos']} held-out photos; {ours['parameters']:,} parameters, "
        f"{minutes:.0f} minutes of one core.",
        "",
        "| style | ours | linear | the photo itself | condition number | undone, exact | "
        "undone, from 8 bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in ours["fidelity"].items():
        marks = " | ".join(
            f"{row[way]['psnr']:.1f} dB, {row[way]['lpips']:.3f}"
            for way in ("ours", "linear", "photo")
        )
        undo = ours["undo"][name]
        lines.append(
            f"| {name} | {marks} | {ours['condition_number'][name]:.0f} | "
            f"{undo['psnr']:.0f} dB | {undo['psnr_of_8_bits']:.1f} dB |"
        )
    lines += ["", f"The operator `photo` gives the photo back at {ours['photo']['psnr']:.1f} dB."]
    for name, row in ours.get("new_style", {}).items():
        ways = "; ".join(
            f"{way} {r['psnr']:.1f} dB, LPIPS {r['lpips']:.3f}"
            for way, r in row.items()
            if isinstance(r, dict)
        )
        lines += ["", f"A new style, {name}, in {row['seconds']:.1f} s: {ways}."]
    blend = ours["blend"]
    lines += [
        "",
        f"| {blend['from']} → {blend['to']} | largest step over mean step (LPIPS) | "
        f"away from the start all the way | nearest to {blend['between_by_number']} on the way |",
        "|---|---|---|---|",
    ]
    for way in ("operator", "pixels", "index"):
        row = blend[way]
        lines.append(
            f"| by {way} | {row['largest_over_mean']:.2f} | "
            f"{row['monotone_share_of_photos']:.0%} of photos | "
            f"{min(row['to_the_style_between']):.3f} |"
        )
    times = ours["seconds"]
    lines += [
        "",
        "Time of a photo, the style network's over ours: "
        + ", ".join(f"{times[n]['network_over_ours']:.2f}× at {n}×{n}" for n in ("256", "1024"))
        + f". Blending {times['blend']['styles']} styles adds "
        f"{max(0.0, times['blend']['share_of_256']):.2%} at 256×256.",
    ]
    if "single" in has:
        rows = has["single"]
        names = list(next(iter(rows.values()))["psnr"])
        lines += ["", f"| one photo alone | {' | '.join(names)} | training, one core |",
                  "|---" * (2 + len(names)) + "|"]  # fmt: skip
        for name, row in rows.items():
            marks = " | ".join(f"{row['psnr'][n]:.1f} dB" for n in names)
            lines.append(f"| {name} | {marks} | {row['cpu_seconds'] / 60:.0f} min |")
    if "paper" in has:
        row = has["paper"]
        lines += [
            "",
            f"| on {row['photos']} of these photos | {' | '.join(row['fidelity'])} |",
            "|---" * (1 + len(row["fidelity"])) + "|",
        ]
        for way, what in (
            ("paper", f"`paper`, {row['cpu_seconds'] / 60:.0f} minutes of one core"),
            ("ours", "shipped"),
        ):
            marks = " | ".join(
                f"{r[way]['psnr']:.1f} dB, {r[way]['lpips']:.3f}" for r in row["fidelity"].values()
            )
            lines.append(f"| {what} | {marks} |")
    return "\n".join(lines) + "\n"


def studio_table() -> str:
    """Latencies in a browser, the server under load, its start, and generated requests."""
    page, load, fuzz = read("studio_page"), read("studio_load"), read("studio_fuzz")
    events = {
        "pen_to_projection": "pen to projection",
        "interpolation_drag": "drag between two images",
        "direction_to_16_digits": "slider to 16 digits",
        "direction_to_16_faces": "slider to 16 faces",
    }
    busy = max(page[key]["load_average"] for key in events)
    lines = [
        f"`benchmarks/studio_page.py`, in headless Chromium on the machine that serves (load "
        f"average up to {busy:.1f}): milliseconds from the event to the painted picture, median "
        "and 95th percentile of 50 events, each after the answer to the one before, and in a "
        "stream.",
        "",
        "| event | one by one | in a stream |",
        "|---|---|---|",
    ]
    for key, what in events.items():
        ways = [page[key][way] for way in ("one_by_one", "in_a_stream")]
        cells = " | ".join(f"{w['median_ms']:.0f}, {w['p95_ms']:.0f}" for w in ways)
        lines.append(f"| {what} | {cells} |")
    memory, start = load["server_resident_mib_after_each_1000"], load["start_seconds"]
    lines += [
        "",
        f"`benchmarks/studio_load.py`: {load['requests']:,} requests of {load['clients']} clients "
        f"on loopback, one torch thread, load average {load['load_average'][0]:.1f}: "
        f"{load['requests_per_second']:.1f} requests a second, {load['errors']} errors; the "
        f"server's memory was {memory[0]:.0f} MiB after 1,000 requests and {memory[-1]:.0f} MiB "
        f"after {load['requests']:,}. It listens {start['listens']:.1f} s after its start and has "
        f"answered with a first sample after {start['first_sample']:.1f} s, of which `import "
        f"torch` alone takes {start['import_torch']:.1f} s.",
        "",
        "| request | count | processor, ms | p50, ms | p99, ms |",
        "|---|---|---|---|---|",
    ]
    own = load["server_processor_milliseconds"]
    for kind, row in sorted(load["milliseconds"].items(), key=lambda item: -item[1]["count"]):
        lines.append(
            f"| {kind} | {row['count']:,} | {own[kind]:g} | {row['p50']:.0f} | {row['p99']:.0f} |"
        )
    statuses = ", ".join(f"{n:,} × {status}" for status, n in fuzz["statuses"].items())
    failures = fuzz["failures"]
    lines += [
        "",
        f"`benchmarks/studio_fuzz.py`: {fuzz['requests']:,} requests of schemathesis "
        f"{fuzz['schemathesis']} to {len(fuzz['by_operation'])} operations in "
        f"{fuzz['seconds']:.0f} s, "
        + ("no server error, and no answer that breaks the schema" if not failures
           else f"{len(failures)} failures")
        + f"; by status {statuses}.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def results_page() -> str:
    """Every number of the paper, and ours; `linearizer reproduce --from benchmarks` is the same."""
    from linearizer.results import gathered, page

    return page(gathered(HERE))


def main() -> None:
    put(README, "benchmarks", table())
    put(DOCS / "peers.md", "peers", peers_table())
    put(DOCS / "training.md", "loop", loop_table())
    put(DOCS / "training.md", "kept", kept_line())
    put(DOCS / "flow.md", "flow", flow_table())
    put(DOCS / "flow.md", "unet", unet_table())
    put(DOCS / "flow.md", "collapse", collapse_table())
    put(DOCS / "projector.md", "projector", projector_table())
    put(DOCS / "style.md", "style", style_table())
    put(DOCS / "forecast.md", "weather", weather_rows())
    put(DOCS / "dynamics.md", "dynamics", dynamics_table())
    put(DOCS / "attributes.md", "attributes", attributes_table())
    put(DOCS / "distill.md", "disentanglement", disentanglement_table())
    put(DOCS / "distill.md", "boosting", boosting_line())
    put(DOCS / "studio.md", "studio", studio_table())
    (DOCS / "results.md").write_text(results_page())
    print("wrote results.md")


if __name__ == "__main__":
    main()
