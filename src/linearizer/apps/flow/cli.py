"""The commands of a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..command import JsonFlag, PngOption, RootOption, TensorOption, answer, new_commands, run_first

__all__ = ["commands"]

commands = new_commands()

FlowArgument = Annotated[
    str, typer.Argument(help="A run folder of a flow, or the name of a shipped one.")
]
SolverOption = Annotated[
    Literal["euler", "midpoint", "rk4", "exponential"],
    typer.Option(help="which steps are collapsed"),
]
StepsOption = Annotated[int, typer.Option(min=1, help="how many steps are collapsed")]


@commands.command()
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
    from . import use

    how = use.Steps(solver, steps)
    result = use.sample(run, n, seed, how, out, tensor, temperature, loop)
    kind = f"{steps} steps" if loop else f"one step, collapsed from {steps}"
    answer(result, f"{n} samples in {result['seconds']:.2g} s ({kind} of {solver})", as_json)


@commands.command()
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
    from . import use

    result = use.encode(run, images, use.Steps(solver, steps), out, tensor)
    lines = [f"{path}: decoded again at {value:.1f} dB" for path, value in result["psnr"].items()]
    answer(result, "\n".join(lines), as_json)


@commands.command()
def interpolate(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] FIRST SECOND",
            help="Images to start from and to end at; before them, if you like, a run folder of a "
            "flow or the name of a shipped one [default: mnist-flow].",
        ),
    ],
    run: Annotated[str, typer.Option(hidden=True)] = "mnist-flow",
    n: Annotated[int, typer.Option("-n", min=2, max=200, help="images from one to the other")] = 9,
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Go from one image to another in a straight line through the noise that they encode to.

    Example: linearizer interpolate mnist-flow three.png eight.png -o path.png
    """
    from . import use

    run, images = run_first(inputs, run)
    if len(images) != 2:
        raise ValueError(f"interpolate: expected two images, got {len(images)}. Name both.")
    how = use.Steps(solver, steps)
    answer(use.interpolate(run, images[0], images[1], n, how, out), "", as_json)


@commands.command()
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
    from . import use

    how = use.Steps(solver, steps)
    answer(use.combine(run, expression, how, out, data_root), "", as_json)


@commands.command()
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
    from . import use

    answer(use.walk(run, k, seed, use.Steps(solver, steps), out), "", as_json)


@commands.command()
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
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="folder", show_default="RUN/operators/SOLVER-STEPS"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Collapse all steps of a solver into one operator, and write the one-step map to a folder.

    In Python lz.load(FOLDER) gives the map.

    Example: linearizer collapse runs/flow-digits --solver rk4 --steps 1000
    """
    from . import use

    flow = use.open_flow(run)
    if error is not None:
        steps = use.choose_number_of_steps(flow, solver, error, start, end)
    result = use.collapse(flow, use.Steps(solver, steps, start, end, rtol), out)
    rows, columns = result["shape"]
    answer(
        result,
        f"{steps} steps of {solver} collapsed in {result['seconds']:.2g} s: {result['kind']} "
        f"{rows} × {columns} of rank {result['rank']}",
        as_json,
    )
