"""What a flow can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .base import (
    JsonFlag,
    PngOption,
    RootOption,
    TensorOption,
    answer,
    app,
    evaluate_app,
    note,
    paged,
    print_json,
    wrote,
)

FlowArgument = Annotated[
    str, typer.Argument(help="A run folder of a flow, or the name of a shipped one.")
]
SolverOption = Annotated[
    Literal["euler", "midpoint", "rk4", "exponential"],
    typer.Option(help="which steps are collapsed"),
]
StepsOption = Annotated[int, typer.Option(min=1, help="how many steps are collapsed")]


@app.command()
def sample(
    run: FlowArgument = "mnist-flow",
    n: Annotated[int, typer.Option("-n", min=1, help="how many")] = 64,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of the noise")] = 0,
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    temperature: Annotated[float, typer.Option(min=0, help="factor on the noise")] = 1.0,
    loop: Annotated[
        bool, typer.Option("--loop", help="take the steps one by one, to compare")
    ] = False,
    out: PngOption = None,
    tensor: TensorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw samples from noise in one step.

    Example: linearizer sample mnist-flow -n 64 --seed 0 -o grid.png
    """
    from .. import sampling

    how = sampling.Steps(solver, steps)
    result = sampling.sample(run, n, seed, how, out, tensor, temperature, loop)
    kind = f"{steps} steps" if loop else f"one step, collapsed from {steps}"
    answer(result, f"{n} samples in {result['seconds']:.2g} s ({kind} of {solver})", as_json)


@app.command()
def encode(
    run: FlowArgument,
    images: Annotated[list[str], typer.Argument(help="Image files.")],
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    out: PngOption = None,
    tensor: TensorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Encode images to the noise that they come from, by the pseudo-inverse, and decode them.

    Example: linearizer encode mnist-flow a.png b.png --tensor noise.safetensors
    """
    from .. import sampling

    result = sampling.encode(run, images, sampling.Steps(solver, steps), out, tensor)
    lines = [f"{path}: decoded again at {value:.1f} dB" for path, value in result["psnr"].items()]
    answer(result, "\n".join(lines), as_json)


@app.command()
def interpolate(
    first: Annotated[str, typer.Argument(help="Image to start from.")],
    second: Annotated[str, typer.Argument(help="Image to end at.")],
    run: Annotated[str, typer.Option(help="run folder of a flow, or a shipped one")] = "mnist-flow",
    n: Annotated[int, typer.Option("-n", min=2, max=200, help="images from one to the other")] = 9,
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Go from one image to another in a straight line through the noise that they encode to.

    Example: linearizer interpolate three.png eight.png -o path.png
    """
    from .. import sampling

    how = sampling.Steps(solver, steps)
    answer(sampling.interpolate(run, first, second, n, how, out), "", as_json)


@app.command()
def combine(
    expression: Annotated[
        str, typer.Argument(help="A sum of image files and class:NAME, each with a factor.")
    ],
    run: Annotated[str, typer.Option(help="run folder of a flow, or a shipped one")] = "mnist-flow",
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    out: PngOption = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Add and subtract what images, or the means of classes, encode to.

    Example: linearizer combine "mine.png + 0.8*class:Smiling - 0.8*class:Male" --run celeba-flow
    """
    from .. import sampling

    how = sampling.Steps(solver, steps)
    answer(sampling.combine(run, expression, how, out, data_root), "", as_json)


@app.command()
def walk(
    run: FlowArgument = "mnist-flow",
    k: Annotated[int, typer.Option("-k", min=1, help="directions")] = 6,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="seed of the sample to start from")
    ] = 0,
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Move one sample along the strongest singular directions of the collapsed map.

    Example: linearizer walk mnist-flow -k 6 --seed 3
    """
    from .. import sampling

    answer(sampling.walk(run, k, seed, sampling.Steps(solver, steps), out), "", as_json)


@app.command()
def collapse(
    run: FlowArgument,
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    start: Annotated[float, typer.Option("--from", help="time to start from")] = 0.0,
    end: Annotated[float, typer.Option("--to", help="time to reach")] = 1.0,
    rtol: Annotated[
        float, typer.Option(min=0, help="relative size of what may be dropped from the operator")
    ] = 0.0,
    error: Annotated[
        float | None,
        typer.Option(min=0, help="choose the number of steps for this error", show_default="no"),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="even if it is kept already")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Collapse all steps of a solver into one operator, and keep it in the run folder.

    Example: linearizer collapse runs/flow-digits --solver rk4 --steps 1000
    """
    from .. import sampling

    one = sampling.flow_of(run)
    if error is not None:
        steps = sampling.steps_for(one, solver, error, start, end)
    done = sampling.collapsed(one, sampling.Steps(solver, steps, start, end, rtol), again)
    A = done.f.operator
    verb = "read" if done.reused else "collapsed"
    files = [] if done.path is None else [done.path]
    result = {
        "solver": solver, "steps": steps, "seconds": done.seconds, "reused": done.reused,
        "rank": done.f.rank(), "kind": type(A).__name__, "shape": list(A.shape), "files": files,
    }  # fmt: skip
    answer(
        result,
        f"{steps} steps of {solver} {verb} in {done.seconds:.2g} s: {type(A).__name__} "
        f"{A.shape[0]} × {A.shape[1]} of rank {result['rank']}",
        as_json,
    )


@evaluate_app.command("flow")
def evaluate_flow(
    run: FlowArgument = "mnist-flow",
    samples: Annotated[int, typer.Option(min=100, help="samples for the FID")] = 10_000,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Quality, one step against many, inversion and times of a flow, beside the paper's numbers.

    Example: linearizer evaluate flow mnist-flow --samples 10000
    """
    from .. import evaluation

    result = paged(evaluation.flow(run, samples, out, data_root, note))
    if as_json:
        print_json(result)
        return
    for section in ("fid", "inversion", "round_trip"):
        typer.echo(section.replace("_", " "))
        for key, value in result[section].items():
            typer.echo(f"  {key.replace('_', ' ')}: {value}")
    for steps, row in result["one_against_many"].items():
        typer.echo(f"one step against {steps}: MSE {row['mse_float32']:.1e} in float32, "
                   f"{row['mse_float64']:.1e} in float64")  # fmt: skip
    for batch in ("batch 1", "batch 64"):
        row = result["times"][batch]
        typer.echo(
            f"{batch}: {row['one_step_seconds'] * 1e3:.3g} ms an image in one step; 100 steps take "
            f"{row['coordinates_over_one_step']:.0f} times that in coordinates, "
            f"{row['data_over_one_step']:.0f} times through data"
        )
    wrote(result["files"])
