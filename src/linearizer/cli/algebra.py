"""Laws, spectra and exports of any run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..apps.command import JsonFlag, RootOption, RunArgument, list_files, note, print_json
from .base import app


@app.command()
def certify(
    run: RunArgument,
    n: Annotated[
        int | None,
        typer.Option(
            "-n", min=1, help="test samples to measure on", show_default="64; 8 of large images"
        ),
    ] = None,
    single: Annotated[
        bool, typer.Option("--float32", help="measure in float32, not in float64")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="largest relative error", show_default="what rounding can do"),
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure every law of a trained map on test samples; exit code 1 unless they pass.

    It passes if no law fails and none of round trips, axioms, linearity, composition and adjoint is
    left out because rounding leaves no digit.

    Example: linearizer certify runs/attributes-digits
    """
    from ..runs.algebra import certify_run
    from ..training.progress import Transfer

    with Transfer("laws") as transfer:
        certificate = certify_run(
            run,
            n,
            "float32" if single else "float64",
            tolerance,
            data_root,
            lambda done, total: transfer.update("certify", done, total),
            note,
        )
    if as_json:
        print_json(certificate.to_dict())
    else:
        typer.echo(str(certificate))
    if not certificate.passed:
        raise typer.Exit(1)


@app.command()
def spectrum(
    run: RunArgument,
    k: Annotated[int, typer.Option("-k", min=1, help="singular vectors to draw")] = 8,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="folder for the pictures, or a PNG for the values alone",
            show_default="RUN/spectrum",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Plot the singular values (and eigenvalues) of a trained map, and draw singular vectors.

    Example: linearizer spectrum runs/attributes-digits -k 6
    """
    from ..runs.algebra import write_spectrum

    result = write_spectrum(run, k, out)
    if as_json:
        print_json(result)
        return
    if "modes" in result:
        for mode in result["modes"]:
            _mode(mode, result["unit"])
        list_files(result["files"])
        return
    values = result["singular_values"]
    m, size = result["dimensions"]
    typer.echo(
        f"core {m} × {size}; singular values "
        + " ".join(f"{v:.3g}" for v in values[:12])
        + (" …" if len(values) > 12 else "")
    )
    list_files(result["files"])


def _mode(mode: dict[str, Any], unit: str) -> None:
    each, some = (f"/{unit}", f" {unit}") if unit else (" in a unit of time", "")
    turns = f"{mode['frequency']:.4g} cycles{each}" if mode["frequency"] else "no frequency"
    half = mode["half_life"]
    keeps = (
        "keeps its size"
        if half is None
        else (f"half-life {half:.4g}{some}" if half > 0 else f"doubles in {-half:.4g}{some}")
    )
    typer.echo(
        f"mode {mode['number']}: {turns}, rate {mode['rate']:.4g} ({keeps}), "
        f"share {mode['share']:.1%}"
    )


@app.command()
def export(
    run: RunArgument,
    to: Annotated[
        Literal["onnx", "torch-export", "hub"],
        typer.Option("--format", help="hub is the Hugging Face layout"),
    ] = "onnx",
    form: Annotated[
        Literal["f", "pinv", "transpose"],
        typer.Option("--map", help="f itself, its pseudo-inverse f†, or its transpose fᵀ"),
    ] = "f",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="file, or folder for hub", show_default="in RUN"),
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a trained map as one file that runs elsewhere, checked against the original.

    Example: linearizer export runs/attributes-digits --format onnx --map pinv -o decode.onnx
    """
    from ..runs.algebra import export_run

    result = export_run(run, to, form, out, data_root, note)
    if as_json:
        print_json(result)
        return
    if "max_error" in result:
        typer.echo(
            f"{form} as {to}: (batch, {', '.join(map(str, result['input_shape']))}) → "
            f"(batch, {', '.join(map(str, result['output_shape']))}), largest difference "
            f"{result['max_error']:.1e}"
        )
    list_files(result["files"])
