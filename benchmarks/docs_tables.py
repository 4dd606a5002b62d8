"""The tables of docs/training.md, docs/flow.md (collapse) and docs/studio.md, from JSON files.

python benchmarks/readme_table.py     rewrites them with the others.
"""

from __future__ import annotations

from common import read


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


def small_table() -> str:
    """What runs on small data end with, beside their last weights and the plain method."""
    lines = [
        "| data | measure, in validation | the run ends with | last weights | plain | time |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in read("small_data")["rows"].items():
        where = "the plain method" if row["kept_step"] is None else f"step {row['kept_step']:,}"
        plain = row["plain"]
        beside = "–" if plain is None else f"{plain['value']:.4g} ({plain['name']})"
        lines.append(
            f"| {name} | {row['metric']} | {row['kept']:.4g}, {where} | {row['last']:.4g}, step "
            f"{row['last_step']:,} | {beside} | {row['seconds']} s |"
        )
    return "\n".join(lines) + "\n"


def collapse_table() -> str:
    """All steps as one operator, against products of dense matrices."""
    result = read("collapse")
    dense, one = result["dense_12288_extrapolated"], result["dense_12288_one_product"]["seconds"]
    lines = [
        "| RK4 steps | time | peak memory | rank of B − αI | relative error to the loop | "
        "dense: four products a step, one measured | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
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
        + (
            "no server error, and no answer that breaks the schema"
            if not failures
            else f"{len(failures)} failures"
        )
        + f"; by status {statuses}.",
    ]
    return "\n".join(lines) + "\n"


def faults_line() -> str:
    """What kills and damaged files did, for the page about training."""
    found = read("faults")
    kills, studio = found["kill_9"], found["studio"]
    files = found["damaged_files"]
    count, broken = (sum(row[key] for row in files.values()) for key in ("files", "broken"))
    opened = sum(row.get("opened", 0) for row in files.values())
    memory = studio["server_resident_mib_after_each_1000"]
    return (
        f"`python benchmarks/faults.py`: {kills['kills']} kills by signal 9 at random moments, "
        f"{kills['in_the_middle_of_training']} of them in the middle of training at "
        f"{kills['different_steps']} different steps; {kills['runs_finished']} runs went on to "
        f"their end, of which {kills['runs_that_differ']} differ from a run that nobody killed in "
        f"any bit. {count:,} randomly damaged files ({', '.join(files)}): {opened} open, the "
        f"others are one sentence, {broken} anything else. {studio['requests']:,} requests to the "
        f"studio: {studio['errors']} errors, {memory[0]:.0f} MiB after the first thousand and "
        f"{memory[-1]:.0f} at the end.\n"
    )


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
        "`python -m paper.short_flow`, `python -m paper.unet_flow` |",
        "",
        "Error at ten training horizons, in standard deviations of the data, and the time of 1,000 "
        "states over ours (`python -m paper record dynamics`):",
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
