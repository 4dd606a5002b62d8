r"""The paper's numbers and ours, as a page that is a function of measured JSON and nothing else.

What is measured are the dictionaries that ``linearizer.evaluation`` writes: those of ``benchmarks``
(``found = gathered(Path("benchmarks"))``), those of ``linearizer reproduce``, or one alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import apps
from .evaluation.disentanglement import COLUMNS
from .evaluation.forecast import HORIZONS, PUBLISHED

__all__ = ["EXPERIMENTS", "Claim", "Section", "claims_of", "counted", "gathered", "page",
           "sections"]  # fmt: skip

#: How ours stands to the paper's number; the first three where there are two to compare.
BETTER, EQUAL, WORSE = "better", "equal", "worse"
APART, SILENT, MISSING = "not comparable", "no number in the paper", "not measured"
VERDICTS = (BETTER, EQUAL, WORSE, APART, SILENT, MISSING)
#: What is counted apart: a better number by another protocol is no better result.
OTHERWISE = "better by another protocol"

Found = Mapping[str, Any]


class Claim(NamedTuple):
    """A number of the paper, and ours."""

    what: str
    paper: str
    ours: str
    verdict: str
    #: "yes", or "no: why"
    protocol: str
    time: str = ""
    command: str = ""


class Section(NamedTuple):
    """One experiment of the paper."""

    name: str
    title: str
    text: str
    claims: list[Claim]
    notes: list[str]


def judged(ours: float, paper: float, tolerance: float = 0.0, less: bool = False) -> str:
    """Better, equal (within the tolerance) or worse; ``less`` where less is better."""
    gap = paper - ours if less else ours - paper
    return EQUAL if abs(gap) <= tolerance else BETTER if gap > 0 else WORSE


def spread(value: Any, form: str = ".3f") -> str:
    """A number, or mean ± standard deviation where there are several."""
    if isinstance(value, Sequence):
        mean, std = value
        return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}")
    return f"{value:{form}}"


def middle(value: Any) -> float:
    """The number itself, or the mean."""
    return float(value[0] if isinstance(value, Sequence) else value)


def counted(claims: Iterable[Claim]) -> dict[str, int]:
    """How many claims have each verdict; better are those by the same protocol alone."""
    counts = dict.fromkeys((BETTER, OTHERWISE, *VERDICTS[1:]), 0)
    for claim in claims:
        otherwise = claim.verdict == BETTER and not claim.protocol.startswith("yes")
        counts[OTHERWISE if otherwise else claim.verdict] += 1
    return counts


# -- flows ---------------------------------------------------------------------------------

#: Test images of CelebA's own split.
CELEBA_TEST = 19_962
#: Images as the paper takes them.
SHAPES = {"mnist": (1, 32, 32), "celeba": (3, 64, 64)}
#: Whole steps of the paper go through g and g⁻¹, and ours do not.
LOOP = "our loop stays in coordinates"


def flow_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Section 4.1 and figure 5, for one evaluated flow."""
    data, paper = row["data"]["name"], row.get("paper", {})
    part = _part(row)
    claims = []

    def add(what: str, said: Any, ours: Any, form: str, verdict: str, protocol: str) -> None:
        shown = "–" if said is None else f"{said:{form}}"
        claims.append(Claim(f"{data}: {what}", shown, ours, verdict, protocol, time, command))

    once = row["one_against_many"]["100"]
    said = paper.get("one_against_100_steps", {})
    same = f"no: {LOOP}; the paper does not say how many samples{_size(row)}"
    if not said:
        same = f"the same noise, 64 samples; {LOOP}"
    mse = once["mse_float32"]
    add("one step against 100, mean squared difference", said.get("mse"),
        f"{mse:.0e} ({once['mse_float64']:.0e} in float64)", ".0e",
        judged(mse, said["mse"], less=True) if said else SILENT, same)  # fmt: skip
    add("one step against 100, PSNR in dB", said.get("psnr"), f"{once['psnr']:.1f}", ".1f",
        judged(once["psnr"], said["psnr"], 0.05) if said else SILENT, same)  # fmt: skip
    if "lpips" in once:
        add("one step against 100, LPIPS", said.get("lpips"), f"{once['lpips']:.0e}", ".3f",
            judged(once["lpips"], said["lpips"], 0.0005, less=True) if said else SILENT,
            same)  # fmt: skip
    elif said:
        add("one step against 100, LPIPS", said["lpips"], _unmeasured(row), ".3f", MISSING, "–")
    inverse, said = row["inversion"], paper.get("inversion", {})
    how = f"rank {inverse['rank']}, {part}"
    if said:
        how = (
            f"no: ours is at the rank of B, {inverse['rank']}; the paper's 16 is the rank of A_t, "
            f"and its B = I + low rank is generically full; {part}{_size(row)}"
        )
    psnr = inverse["psnr_mean_over_images"]
    add("inversion f(f†(x)), PSNR in dB", said.get("psnr"), f"{psnr:.1f}", ".1f",
        APART if said else SILENT, how)  # fmt: skip
    if "lpips_alex" in inverse:
        value = inverse["lpips_alex"]
        add("inversion f(f†(x)), LPIPS", said.get("lpips"), f"{value:.3f}", ".3f",
            APART if said else SILENT, how + "; AlexNet, the paper does not say")  # fmt: skip
    elif said:
        add("inversion f(f†(x)), LPIPS", said["lpips"], _unmeasured(row), ".3f", MISSING, "–")
    return claims + _fid_claims(row, time, command)


def _part(row: Mapping[str, Any]) -> str:
    """Which images were measured on."""
    n = row["data"]["test_images"]
    if row["data"]["name"] == "celeba" and n < CELEBA_TEST:
        return f"{n:,} test images of a part of CelebA"
    return f"all {n:,} test images"


def _size(row: Mapping[str, Any]) -> str:
    """What is to be said where the images are not of the paper's size; else nothing."""
    paper, ours = SHAPES.get(row["data"]["name"]), row["data"].get("shape")
    if paper is None or (ours is not None and tuple(ours) == paper):
        return ""
    shown = "of unknown size" if ours is None else "×".join(map(str, ours))
    return f"; images {shown}, the paper's are {'×'.join(map(str, paper))}"


def _unmeasured(row: Mapping[str, Any]) -> str:
    return f"not measured here: {row.get('lpips', 'no LPIPS weights')}"


def _fid_claims(row: Mapping[str, Any], time: str, command: str) -> list[Claim]:
    data, fid = row["data"]["name"], row["fid"]
    paper = row.get("paper", {}).get("inception_fid")
    if fid.get("features") is None:
        if paper is None:
            return []
        why = "not measured here: no weights of a network for features"
        return [Claim(f"{data}: FID in one step (1,000)", f"{paper['1000 in one']}", why, MISSING,
                      "–", time, command)]  # fmt: skip
    how = f"{fid['features']}, {fid['samples']:,} samples, {fid['reference']}"
    one = {n: fid[f"one step ({n} of rk4)"] for n in ("10", "100", "1000")}
    if paper is None:
        shown = f"{one['1000']:.3g} (real training images: {fid['real_training_images']:.2g})"
        return [Claim(f"{data}: FID in one step (1,000)", "–", shown, SILENT, how, time, command)]
    other = f"no: the paper takes Inception's features, we {how}"
    loop, apart = fid["10 steps in a loop"], abs(one["10"] - fid["10 steps in a loop"])
    once = row["one_against_many"]
    rows = [
        ("FID, 1 full step", "405", "not measured here: loops of 10 steps are the shortest",
         MISSING, "–"),
        ("FID, 10 full steps", "152", f"{loop:.1f} in other features", APART, other),
        ("FID, 100 full steps", "127",
         "not measured here: its samples are those of one step, to "
         f"{once['100']['mse_float32']:.0e} mean square", MISSING, "–"),
        ("FID, one step (100)", "131", f"{one['100']:.1f} in other features", APART, other),
        ("FID, one step (1,000)", "123",
         f"{one['1000']:.1f} in other features (real training images: "
         f"{fid['real_training_images']:.1f})", APART, other),
        ("FID of one step less that of as many full ones", "4 (131 − 127)", f"{apart:.2g}",
         APART, "no: other features; 10 steps, the paper's are 100"),
        ("FID that 1,000 steps gain over 100, both in one", "8 (131 − 123)",
         f"{one['100'] - one['1000']:.2g}: {10 if apart < 0.05 else 100} steps are enough here",
         APART, other),
    ]  # fmt: skip
    return [
        Claim(f"{data}: {what}", said, ours, verdict, protocol, time, command)
        for what, said, ours, verdict, protocol in rows
    ]


def _flow(found: Found) -> Section:
    rows = found["flow"]
    claims: list[Claim] = []
    notes: list[str] = []
    for name, row in _runs(rows, "one_against_many"):
        command = _command(found, "flow", f"linearizer evaluate flow {name}")
        claims += flow_claims(row, _time(found, rows, name), command)
        notes += row["data"]["notes"]
    for name, row in rows.items():
        if isinstance(row, Mapping) and "one_against_100_mse_float32" in row:
            mse = row["one_against_100_mse_float32"]
            claims.append(Claim(
                f"{name}, time-dependent as the paper's: one step against 100", "3e-04",
                f"{mse:.0e} ({row['one_against_100_mse_float64']:.0e} in float64)",
                judged(mse, 3e-4, less=True),
                f"no: rank {row['rank']}, prediction of x₁, g given; the loop stays in coordinates",
                _took(row["training_seconds"] / 60, rows), "python benchmarks/flow.py learned",
            ))  # fmt: skip
    for steps, row in found.get("collapse", {}).get("structured", {}).items():
        claims.append(Claim(
            f"appendix F: {int(steps):,} RK4 steps of a core of rank "
            f"{found['collapse']['rank']} at d = {found['collapse']['d']:,} in one operator",
            "derived", f"{row['relative_error_to_the_loop']:.0e} relative error to the loop",
            SILENT, "float32", _took(row["seconds"] / 60, found["collapse"]),
            "python benchmarks/collapse.py",
        ))  # fmt: skip
    return Section("flow", "One-step flows (section 4.1, figure 5, appendix F)", "", claims, notes)


# -- projectors ----------------------------------------------------------------------------


def projector_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Section 4.3, for one evaluated projector."""
    worst = max(row["idempotency_float32"].values())
    exact = row.get("idempotency_float64")
    double = f", {max(exact.values()):.0e} in float64" if exact else ""
    name = row.get("run", "")
    rank, psnr = row.get("rank"), row["reconstruction"]["psnr_mean_over_images"]
    lost = ": everything goes to one image" if rank == 0 else ""
    rows = [
        ("rank, and PSNR of test images", "pictures", f"{rank}{lost}; {psnr:.1f} dB"),
    ]
    if rank != 0:  # a constant is idempotent, and says nothing
        rows.insert(0, ("largest |f(f(x)) − f(x)| over data, noise, photos and others",
                        "f(f(x)) = f(x), exactly", f"{worst:.0e}{double}"))  # fmt: skip
    noise = row.get("projected", {}).get("noise 1")
    if noise and rank != 0:
        classes = sum(n > 0 for n in noise["classes"])
        rows.append(
            ("projected noise (σ = 1) of which a digit classifier is sure", "pictures",
             f"{noise['share_confident']:.0%}, of {classes} of 10 classes")
        )  # fmt: skip
    return [
        Claim(f"{name}: {what}" if name else what, said, ours, SILENT, "–", time, command)
        for what, said, ours in rows
    ]


def _projector(found: Found) -> Section:
    rows = found["projector"]
    claims: list[Claim] = []
    notes: list[str] = []
    for name, row in sorted(_runs(rows, "idempotency_float32"), key=lambda r: r[0] == "paper"):
        own = "run" in row
        if not own and name != "paper":
            continue  # baselines, and recipes of ours
        command = f"linearizer evaluate projector {name}" if own else (
            f"linearizer train projector --preset {name} --data mnist --size 32"
        )  # fmt: skip
        title = name if own else f"preset `{name}`, {row['steps']:,} steps"
        time = _time(found, rows, name) if own else _took(row["cpu_seconds"] / 60, rows)
        claims += projector_claims(
            {**row, "run": title}, time, _command(found, "projector", command)
        )
        notes += row.get("data", {}).get("notes", [])
    if "ign" in rows:
        error = rows["ign"]["idempotency_float32"]
        claims.append(Claim(
            "IGN, whose idempotency is trained: |f(f(x)) − f(x)| on data, on noise (σ = 10)",
            "“only around the training data”", f"{error['data']:.2g}, {error['noise 10']:.2g}",
            SILENT, "our own IGN, with a network of ours",
            _took(rows["ign"]["cpu_seconds"] / 60, rows), "python benchmarks/projector.py ign",
        ))  # fmt: skip
    text = "The paper shows pictures and has no number. It proves idempotency; here it is measured."
    return Section("projector", "Idempotent projectors (section 4.3)", text, claims, notes)


# -- styles --------------------------------------------------------------------------------


#: Held-out photos that are undone, and blended, at most.
UNDONE, BLENDED = 20, 8


def style_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Section 4.2, for one evaluated style model."""

    def mean(way: str, key: str) -> float | None:
        values = [r[way].get(key) for r in row["fidelity"].values() if way in r]
        return sum(values) / len(values) if values and None not in values else None

    def photos(n: int) -> str:
        some = min(n, row["photos"])
        if not row.get("held_out", True):
            return "its own photo"
        return f"{some} held-out photo{'s' if some != 1 else ''}"

    where = photos(row["photos"])
    claims = []

    def add(what: str, ours: str, how: str = where) -> None:
        claims.append(Claim(what, "pictures", ours, SILENT, how, time, command))

    for key, form, unit in (("psnr", ".1f", " dB"), ("lpips", ".3f", "")):
        ours, linear = mean("ours", key), mean("linear", key)
        if ours is not None and linear is not None:
            add(f"{key.upper()} to the style network, mean of {len(row['fidelity'])} styles",
                f"{ours:{form}}{unit} (best linear filter: {linear:{form}}{unit})")  # fmt: skip
    if "blend" in row:
        blend = row["blend"]
        add(f"blend of {blend['from']} and {blend['to']}: largest step over the mean one",
            f"{blend['operator']['largest_over_mean']:.2f} by operator, "
            f"{blend['index']['largest_over_mean']:.2f} by index",
            f"{photos(BLENDED)}, 11 steps; the paper says nothing of a measure")  # fmt: skip
    if row.get("undo"):
        least = min(r["psnr"] for r in row["undo"].values())
        add("undone by f†, PSNR", f"at least {least:.0f} dB",
            f"{photos(UNDONE)}; the least of the styles' means")  # fmt: skip
    return claims


def _style(found: Found) -> Section:
    rows = found["style"]
    claims: list[Claim] = []
    for name, row in _runs(rows, "condition_number"):
        command = _command(found, "style", f"linearizer evaluate style {name}")
        claims += [
            c._replace(what=f"{name}: {c.what}")
            for c in style_claims(row, _time(found, rows, name), command)
        ]
    paper = rows.get("paper", {})
    if "fidelity" in paper and "cpu_seconds" in paper:
        kinds = {
            way: [r[way]["lpips"] for r in paper["fidelity"].values()] for way in ("paper", "ours")
        }
        means = {way: sum(v) / len(v) for way, v in kinds.items()}
        claims.append(Claim(
            "preset `paper` (glow, 4×4 kernels): LPIPS to the style network, mean of "
            f"{len(paper['fidelity'])} styles", "pictures",
            f"{means['paper']:.3f} (shipped: {means['ours']:.3f})", SILENT,
            f"{paper['photos']} held-out photos", _took(paper["cpu_seconds"] / 60, rows),
            "python benchmarks/style.py paper",
        ))  # fmt: skip
    text = "The paper shows pictures and has no number."
    return Section("style", "Styles (section 4.2)", text, claims, [])


# -- encoders ------------------------------------------------------------------------------


def disentangle_claims(
    row: Mapping[str, Any], time: Callable[[float | None], str] = lambda s: "", command: str = ""
) -> list[Claim]:
    """The table of appendix E, for an evaluation of all its rows."""
    rows, claims = row["rows"], []
    drawn = any("re-rendered" in note for note in row["data"])
    seeds = row["seeds"]
    several = f"{seeds} seed{'s' if seeds != 1 else ''}"
    how = f"no: re-rendered dSprites, {several}" if drawn else f"yes: {several}"
    equal: dict[str, bool] = {}
    for name, r in rows.items():
        if "paper" not in r:
            continue
        ours, said = (" / ".join(spread(s[k], f) for k in COLUMNS)
                      for s, f in ((r, ".3f"), (r["paper"], ".2f")))  # fmt: skip
        verdicts = {_close(r[k], r["paper"][k]) for k in COLUMNS}
        same = EQUAL if verdicts == {EQUAL} else APART
        spent = r.get("training_seconds")
        equal[name] = same == EQUAL and not drawn
        claims.append(Claim(name, said, ours, same, how, time(spent), command))
    for name, r in rows.items():
        teacher_name = name.removeprefix("Linearizer-").partition(",")[0]
        teacher = rows.get(teacher_name)
        if not name.startswith("Linearizer-") or teacher is None or "paper" not in r:
            continue
        gaps = {k: abs(middle(r[k]) - middle(teacher[k])) for k in COLUMNS}
        theirs = {k: abs(r["paper"][k][0] - teacher["paper"][k][0]) for k in COLUMNS}
        far, paper_far = max(gaps, key=lambda k: gaps[k]), max(theirs, key=lambda k: theirs[k])
        stds = [s[far][1] for s in (r, teacher)]
        std = None if None in stds else math.hypot(*stds)
        # The paper's numbers are rounded, and those of few seeds.
        tolerance = 0.01 + max(s["paper"][paper_far][1] for s in (r, teacher))
        fair = equal.get(teacher_name, False)
        claims.append(Claim(
            f"{name}: largest difference of a score to its teacher's",
            f"{theirs[paper_far]:.2f} ({COLUMNS[paper_far]})",
            f"{spread((gaps[far], std))} ({COLUMNS[far]}); R² {r['r2']:.4f} on held-out images",
            judged(gaps[far], theirs[paper_far], tolerance, less=True) if fair else APART,
            how if fair else f"no: its teacher does not have the paper's scores; {several}",
            time(r.get("training_seconds")), command,
        ))  # fmt: skip
    return claims


def _close(ours: Sequence[float | None], paper: Sequence[float]) -> str:
    """Equal where they are within both deviations and the paper's rounding."""
    apart = abs((ours[0] or 0.0) - paper[0])
    return EQUAL if apart <= (ours[1] or 0.0) + paper[1] + 0.005 else APART


def _disentangle(found: Found) -> Section:
    row = found["disentanglement"]
    command = _command(found, "disentangle", "linearizer evaluate disentanglement")

    def time(seconds: float | None) -> str:
        return "published encoder" if seconds is None else _took(seconds / 60, row)

    claims = disentangle_claims(row, time, command)
    several = "of one seed" if row["seeds"] == 1 else (
        f"mean ± standard deviation over {row['seeds']} seeds of the scores"
    )  # fmt: skip
    text = (
        f"Scores in the order {' / '.join(COLUMNS.values())}, {several}. Teachers are the "
        "published encoders that the paper distils. Where a teacher does not get the paper's "
        "scores, definitions or images differ, and nothing can be compared: the last rows then "
        "only say how near a Linearizer is to its teacher. “Same layers” has the teacher's layers "
        "inside g and starts as the teacher; the others start from nothing."
    )
    title = "Distilled encoders of dSprites (appendix E)"
    return Section("disentangle", title, text, claims, list(row["data"]))


# -- classifiers ---------------------------------------------------------------------------

#: Points of accuracy within which two are called equal: the error of a mean over a thousand faces.
POINTS = 0.005


def attributes_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Accuracies of appendix E, for one evaluated classifier."""
    data, paper = row["data"]["name"], row.get("paper")
    ours, base = row["linearizer"]["accuracy"], middle(row["majority"]["accuracy"])
    shown = f"{spread(ours, '.1%')} (majority: {base:.1%})"
    part = f"{row['data'].get('train_images', 0):,} training images, {_part(row)}"
    if paper is None:
        return [Claim(f"{data}: accuracy", "–", shown, SILENT, part, time, command)]
    part += _size(row)
    how = f"no: {part}" if "part of" in part or _size(row) else f"yes: {part}"
    claims = [
        Claim(f"{data}: mean accuracy over 40 attributes", f"{paper['linearizer']:.1%}", shown,
              judged(middle(ours), paper["linearizer"], POINTS), how, time, command)
    ]  # fmt: skip
    said = paper["linearizer"] - paper["resnet50"]
    if "resnet18" not in row:
        why = "not measured here: --baseline-minutes trains a ResNet-18"
        return [*claims, Claim(f"{data}: residual network", f"{paper['resnet50']:.1%}", why,
                               MISSING, "–", time, command)]  # fmt: skip
    other = middle(row["resnet18"]["accuracy"])
    gap = middle(ours) - other
    ratio = f"no: {part}; ResNet-18 of equal training time, the paper's is a ResNet-50"
    return [
        *claims,
        Claim(f"{data}: residual network, to compare with", f"{paper['resnet50']:.1%}",
              spread(row["resnet18"]["accuracy"], ".1%"), APART, ratio, time, command),
        Claim(f"{data}: Linearizer over the residual network, points",
              _signed([100 * said], "+.1f"), _signed([100 * gap], "+.1f"),
              judged(gap, said, POINTS), ratio, time, command),
    ]  # fmt: skip


def _attributes(found: Found) -> Section:
    rows = found["attributes"]
    claims: list[Claim] = []
    notes: list[str] = []
    for name, row in _runs(rows, "majority"):
        command = _command(found, "attributes", f"linearizer evaluate attributes {name}")
        claims += attributes_claims(row, _time(found, rows, name), command)
        notes += row["data"]["notes"]
    text = (
        f"Accuracies within {100 * POINTS:g} points are called equal: that is what a mean over a "
        "thousand faces is good for."
    )
    return Section("attributes", "Attributes of faces (appendix E)", text, claims, notes)


# -- weather -------------------------------------------------------------------------------


def weather_claims(
    row: Mapping[str, Any], time: Callable[[float], str] = lambda s: "", command: str = ""
) -> list[Claim]:
    """The table of appendix E, for an evaluation of all its rows."""
    ours = row["rows"].get("strict", {})
    daily, small = row["rows"].get("daily", {}), row["rows"].get("PatchTST, small", {})
    paper, patch, auto = (
        dict(zip(map(str, HORIZONS), PUBLISHED[name][1], strict=True))
        for name in ("Linearizer (the paper)", "PatchTST (in the paper)",
                     "Autoformer (in the paper)")
    )  # fmt: skip
    planned = apps.get("forecast").training["steps"]
    back = PUBLISHED["Linearizer (the paper)"][0]

    def how(h: str) -> str:
        if row["look_back"] != back:
            return f"no: look-back {row['look_back']}, the paper's is {back}"
        if (steps := ours[h].get("steps", 0)) < planned:
            return f"no: {steps:,} training steps, the preset's are {planned:,}"
        return (
            f"yes: look-back {back}, every test window; some choices were made with looks at test "
            "rows (docs/forecast.md, “What was chosen”)"
        )

    horizons = [h for h in map(str, HORIZONS) if h in ours]
    every = f"weather: {' / '.join(horizons)}"
    claims = []
    for h in horizons:
        mse = ours[h]["mse"]
        beside = f" (a core that follows the day: {daily[h]['mse']:.3f})" if h in daily else ""
        spent = time(ours[h]["cpu_seconds"])
        claims.append(Claim(f"weather: {h} steps, MSE", f"{paper[h]:.3f}", f"{mse:.3f}{beside}",
                            judged(mse, paper[h], 0.0005, less=True), how(h), spent,
                            command))  # fmt: skip
    for name, other in (("PatchTST", patch), ("Autoformer", auto)) if horizons else ():
        theirs = [paper[h] - other[h] for h in horizons]
        gaps = [ours[h]["mse"] - other[h] for h in horizons]
        below = sum(gap < 0 for gap in gaps)
        claims.append(Claim(
            f"{every} steps: MSE less that of {name}, as the paper prints it",
            _signed(theirs), f"{_signed(gaps)}: below it at {below} of {len(gaps)} horizons",
            APART, f"no: {name} is the paper's in both, so this is the rows above once more",
            time(sum(ours[h]["cpu_seconds"] for h in horizons)), command,
        ))  # fmt: skip
    for name, ridge in row["rows"].items():
        if name.startswith("ridge") and (at := [h for h in horizons if h in ridge]):
            claims.append(Claim(
                f"weather: {' / '.join(at)} steps, MSE of the baseline “{name}”", "–",
                " / ".join(f"{ridge[h]['mse']:.3f}" for h in at), SILENT,
                f"look-back {row['look_back']}, every test window; closed form, no network",
                time(sum(ridge[h]["cpu_seconds"] for h in at)), command,
            ))  # fmt: skip
    for h in (h for h in horizons if h in small):
        spent = small[h]["cpu_seconds"]
        claims.append(Claim(
            f"weather: {h} steps, MSE of a PatchTST", f"{patch[h]:.3f}", f"{small[h]['mse']:.3f}",
            APART,
            f"no: a small one of {small[h]['parameters']:,} numbers, {small[h]['steps']:,} steps",
            time(spent), command,
        ))  # fmt: skip
    if horizons:
        why = "not measured here: Autoformer was not trained"
        said = " / ".join(f"{auto[h]:.3f}" for h in horizons)
        claims.append(Claim(f"{every} steps, MSE of an Autoformer", said, why, MISSING,
                            "–", "", command))  # fmt: skip
    return claims


def _signed(values: Iterable[float], form: str = "+.3f") -> str:
    return " / ".join(f"{v:{form}}" for v in values).replace("-", "−")


def _weather(found: Found) -> Section:
    row = found["weather"]
    command = _command(found, "weather", "linearizer evaluate weather")
    claims = weather_claims(row, lambda seconds: _took(seconds / 60, row), command)
    text = (
        "One fixed core (preset `strict`) is compared; the preset `daily` has a core for each time "
        "of day."
    )
    return Section("weather", "Weather (appendix E)", text, claims, [row["data"]])


# -- theory --------------------------------------------------------------------------------


def _theory(found: Found) -> Section:
    claims = []
    if fit := found.get("finite_fit"):
        claims.append(Claim(
            "64 random labels ℝ⁸ → ℝ³, largest error (theorem H.5: below any ε)", "proved",
            f"{fit['sup_error']:.0e} after {fit['steps']:,} steps", SILENT, "–", "",
            "python examples/finite_fit.py",
        ))  # fmt: skip
    if tour := found.get("quickstart"):
        claims.append(Claim(
            "every law of f on digits (section 2), worst relative error", "proved",
            f"{tour['worst_law_float64']:.0e} in float64, {tour['worst_law_float32']:.0e} in "
            "float32", SILENT, "–", f"{tour['training_seconds']:.0f} s of training",
            "linearizer quickstart",
        ))  # fmt: skip
    return Section("theory", "What is proved (sections 2 and 3, appendix H)", "", claims, [])


# -- the page ------------------------------------------------------------------------------


class Experiment(NamedTuple):
    """What `linearizer reproduce` calls it, the JSON files that it needs, and its section."""

    title: str
    files: tuple[str, ...]
    section: Callable[[Found], Section]


EXPERIMENTS = {
    "flow": Experiment("One-step flows", ("flow",), _flow),
    "projector": Experiment("Projectors", ("projector",), _projector),
    "style": Experiment("Styles", ("style",), _style),
    "disentangle": Experiment("Distilled encoders", ("disentanglement",), _disentangle),
    "attributes": Experiment("Attributes", ("attributes",), _attributes),
    "weather": Experiment("Weather", ("weather",), _weather),
}
#: Other files that the page takes from where they are.
BESIDE = ("shipped", "collapse", "finite_fit", "quickstart", "state")

#: One evaluation alone: what its file is called, and the claims that it has a number for.
CLAIMS: dict[str, Callable[[Mapping[str, Any]], list[Claim]]] = {
    "flow": flow_claims,
    "projector": projector_claims,
    "style": style_claims,
    "disentanglement": disentangle_claims,
    "attributes": attributes_claims,
    "weather": weather_claims,
}


def claims_of(kind: str, result: Mapping[str, Any]) -> list[Claim]:
    """The paper's numbers beside those of one evaluation; none where the paper has no such thing.

    Arguments:
        kind: What the evaluation's file is called: flow, projector, style, and so on.
        result: What is in it.
    """
    if kind not in CLAIMS or (kind == "disentanglement" and "encoder" in result):
        return []
    return CLAIMS[kind](result)


def gathered(folder: Path) -> dict[str, Any]:
    """The JSON files of a folder that the page is made of; what is not there is left out."""
    names = [*(f for e in EXPERIMENTS.values() for f in e.files), *BESIDE]
    found = {}
    for name in names:
        path = folder / f"{name}.json"
        if not path.is_file():
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as problem:
            raise ValueError(f"{path}: expected JSON, but {problem}.") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path}: expected a JSON object, got a {type(value).__name__}.")
        found[name] = value
    return found


def _read(found: Found, name: str, experiment: Experiment) -> Section:
    """The section of an experiment; JSON that is not of its shape is one sentence."""
    try:
        return experiment.section(found)
    except (LookupError, TypeError, AttributeError, ValueError) as problem:
        files = ", ".join(f"{file}.json" for file in experiment.files)
        why = f"{problem} is not there" if isinstance(problem, KeyError) else str(problem)
        raise ValueError(
            f"{files}: expected what `linearizer reproduce {name}` writes, but {why}. Measure it "
            "again, or leave it out."
        ) from None


def sections(found: Found) -> list[Section]:
    """All experiments in the paper's order; one without its JSON has no claims and says so."""
    every = []
    for name, experiment in EXPERIMENTS.items():
        if all(file in found for file in experiment.files):
            every.append(_read(found, name, experiment))
        else:
            note = f"Not measured yet: `linearizer reproduce {name}`."
            every.append(Section(name, experiment.title, "", [], [note]))
    theory = _theory(found)
    return [*every, theory] if theory.claims else every


def page(found: Found, origin: str = "benchmarks") -> str:
    """The page as Markdown; the same JSON gives the same page."""
    every = sections(found)
    lines = [
        "# The paper's numbers, and ours",
        "",
        f"From the JSON files in `{origin}/`, by `linearizer reproduce --from {origin}`. "
        "Every number that the paper prints is here, with ours beside it, better or worse. "
        "“Same protocol?” says whether both measure the same thing in the same way: a better "
        "number by another protocol is no better result. Times are those of training; rows of the "
        "collapse (appendix F) have its own.",
        "",
    ]
    if scale := found.get("state", {}).get("scale"):
        lines += [f"Scale: `{scale}`.", ""]
    for part, problem in found.get("state", {}).get("problems", {}).items():
        lines += [f"**Not done**: {part}. {problem}", ""]
    columns = list(counted([]))
    lines += ["| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for section in every:
        counts = counted(section.claims).values()
        lines.append(f"| {section.title} | " + " | ".join(str(n or "–") for n in counts) + " |")
    claims = [c for section in every for c in section.claims]
    for verdict in (BETTER, EQUAL, WORSE):
        for same, how in ((True, "the same protocol"), (False, "another protocol")):
            which = [c.what for c in claims
                     if c.verdict == verdict and c.protocol.startswith("yes") == same]  # fmt: skip
            if which:
                lines += ["", f"**{verdict.capitalize()}, by {how}**: {'; '.join(which)}."]
    for section in every:
        lines += ["", f"## {section.title}", ""]
        if section.text:
            lines += [section.text, ""]
        if section.claims:
            lines += table(section.claims)
        if section.claims and section.name in EXPERIMENTS:
            command = _command(found, section.name, f"linearizer reproduce {section.name}")
            lines += [
                "",
                "All of it again, training included, rows with a command of their own (`python …`) "
                f"apart: `{command}`.",
            ]
        notes = [f"- {note}" for note in dict.fromkeys(section.notes)]
        lines += ["", *notes] if section.claims and notes else notes
    return "\n".join(lines).rstrip() + "\n"


HEAD = ("what", "paper", "ours", "how we compare", "same protocol?", "time and hardware", "command")


def table(claims: Iterable[Claim]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for claim in claims:
        verdict = f"**{claim.verdict}**" if claim.verdict in (BETTER, EQUAL, WORSE) else (
            claim.verdict
        )  # fmt: skip
        command = f"`{claim.command}`" if claim.command else ""
        cells = (*claim[:3], verdict, claim.protocol, claim.time, command)
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return lines


def _runs(rows: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The evaluated runs among the entries of a file."""
    return [(k, v) for k, v in rows.items() if isinstance(v, Mapping) and key in v]


def _command(found: Found, name: str, usual: str) -> str:
    return str(found.get("state", {}).get("commands", {}).get(name, usual))


def _time(found: Found, rows: Mapping[str, Any], name: str) -> str:
    """How long a run was trained for."""
    row = found.get("shipped", {}).get(name, {})
    minutes = row.get("cpu_minutes", row.get("minutes"))
    return (
        "" if minutes is None else _took(minutes, {"machine": row.get("machine", rows["machine"])})
    )


def _took(minutes: float, row: Mapping[str, Any]) -> str:
    machine = row.get("machine", {})
    shown = f"{60 * minutes:.0f} s" if minutes < 2 else f"{minutes:.0f} min"
    if device := machine.get("device"):
        return f"{shown}, {device}"
    threads = machine.get("threads", 1)
    cores = "one" if threads == 1 else str(threads)
    return f"{shown}, {cores} of {machine.get('cores', '?')} CPU cores"
