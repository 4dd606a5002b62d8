"""Latencies of the studio in a real browser, and pictures of it for the documents.

From an event (the pen has moved, a slider has moved) to the frame in which the picture that it
leads to is painted. While drawing or dragging, at most one request is under way, so an event waits
for the answer before its own: it counts from the event itself. Everything runs on this machine: the
server, the browser and whatever else the machine does; the load average says how much that was,
and the processor time of server and browser for each event what it takes without the rest.

    python benchmarks/studio_page.py
    python benchmarks/studio_page.py --screenshots    # docs/images/studio-*.png instead
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import HERE, write
from playwright.sync_api import Page, sync_playwright

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]  # fmt: skip
EVENTS = 50
#: Bytes of a picture in the documents.
LARGEST = 400_000

#: Keeps the time of each event until the first frame with a picture that was asked for after it.
WATCH = """
({ target, event, path, picture }) => {
  const waiting = [], asked = [], found = window.found = [];
  window.events = 0;
  const original = (window.original ??= window.fetch);
  document.querySelector(target).addEventListener(event, (e) => {
    (path ? waiting : asked).push(e.timeStamp);
    window.events++;
  }, true);
  window.fetch = (address, given) => {
    if (path && String(address).endsWith(path)) asked.push(...waiting.splice(0));
    return original(address, given);
  };
  document.querySelector(picture).addEventListener("load", () => {
    const mine = asked.splice(0);
    requestAnimationFrame(() => setTimeout(() => {
      const now = performance.now();
      for (const then of mine) found.push(now - then);
    }));
  });
}
"""


@contextmanager
def studio() -> Iterator[str]:
    """The address of a studio that runs as long as one needs it."""
    command = [sys.executable, "-c", "from linearizer.cli import main; main()", "serve"]
    process = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the studio did not start")
            found = re.search(r"http://[\d.]+:\d+/", line)
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)


def until(page: Page, truth: str) -> None:
    end = time.monotonic() + 120
    while not page.evaluate(truth):
        if time.monotonic() > end:
            raise SystemExit(f"waited two minutes for {truth}")
        page.wait_for_timeout(20)


def settled(page: Page) -> None:
    page.wait_for_timeout(700)
    until(page, "!document.querySelector('[aria-busy=true]')")
    page.wait_for_load_state("networkidle")


def opened(page: Page, address: str, place: str, picture: str) -> None:
    page.goto("about:blank")
    page.goto(f"{address}#{place}")
    until(page, f"document.querySelector('{picture}')?.src?.startsWith('data:')")
    settled(page)


def processor_seconds() -> dict[str, float]:
    """What the server and the browser, children of this process, have used so far."""
    rows = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = place.read_text().partition("(")[2].rpartition(") ")
        except OSError:  # it has ended
            continue
        fields = rest.split()
        ticks = int(fields[11]) + int(fields[12])
        rows[int(place.parent.name)] = int(fields[1]), name, ticks / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {pid for pid, (parent, *_) in rows.items() if parent in ours} - ours:
        ours |= more
    kinds = {"server": "python", "browser": "chrom"}
    return {
        kind: sum(t for pid, (_, name, t) in rows.items()
                  if pid in ours - {os.getpid()} and name.startswith(start))
        for kind, start in kinds.items()
    }  # fmt: skip


def figures(page: Page, events: int, move: Callable[[int], None], patient: bool) -> dict[str, Any]:
    """Median and 95th percentile of so many events, one after another's picture or in a stream."""
    before = processor_seconds()
    for i in range(events):
        move(i)
        if patient:
            until(page, "found.length === events")
        page.wait_for_timeout(30 if patient else 16)
    until(page, "found.length === events")
    used = {kind: s - before[kind] for kind, s in processor_seconds().items()}
    times = sorted(page.evaluate("found"))
    return {
        "events": len(times),
        "median_ms": round(statistics.median(times), 1),
        "p95_ms": round(times[int(0.95 * (len(times) - 1))], 1),
        "largest_ms": round(times[-1], 1),
        "processor_ms": {kind: round(1e3 * s / len(times), 1) for kind, s in used.items()},
    }


def pen(page: Page, address: str, patient: bool) -> dict[str, Any]:
    """Loops as of a person who draws an 8, again and again."""
    import math

    opened(page, address, "project?base=none", "#project-once")
    page.evaluate(WATCH, {"target": "#project-pad canvas", "event": "pointermove",
                          "path": "api/project", "picture": "#project-once"})  # fmt: skip
    box = page.locator("#project-pad canvas").bounding_box()
    assert box is not None

    def move(i: int) -> None:
        turn = 2 * math.pi * i / 45
        x, y = 0.5 + 0.18 * math.sin(2 * turn), 0.5 - 0.3 * math.cos(turn)
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        if i == 0:
            page.mouse.down()

    move(0)
    settled(page)
    page.evaluate("() => { found.length = events = 0; }")
    result = figures(page, EVENTS, lambda i: move(i + 1), patient)
    page.mouse.up()
    return result


def slider(
    page: Page, address: str, place: str, which: str, picture: str, path: str, patient: bool
) -> dict[str, Any]:
    """A slider to and fro."""
    opened(page, address, place, picture)
    page.evaluate(WATCH, {"target": which, "event": "input", "path": path, "picture": picture})
    control = page.locator(which)
    control.scroll_into_view_if_needed()
    box = control.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, y)
    page.mouse.down()
    settled(page)
    page.evaluate("() => { found.length = events = 0; }")

    def move(i: int) -> None:
        share = abs((0.5 + 0.031 * (i + 1)) % 2 - 1)
        page.mouse.move(box["x"] + 14 + (box["width"] - 28) * share, y)

    result = figures(page, EVENTS, move, patient)
    page.mouse.up()
    return result


def measured(page: Page, address: str, facts: dict[str, Any]) -> None:
    """Each measurement, written as soon as it is there."""
    grid, geodesic = "#generate-grid img", "#interpolate-geodesic"
    both: dict[str, Callable[[bool], dict[str, Any]]] = {
        "pen_to_projection": lambda patient: pen(page, address, patient),
        "interpolation_drag": lambda patient: slider(
            page, address, "interpolate", "#interpolate-s", geodesic, "", patient),
        "direction_to_16_digits": lambda patient: slider(
            page, address, "generate?model=mnist-flow", "#generate-direction-0", grid,
            "api/generate", patient),
        "direction_to_16_faces": lambda patient: slider(
            page, address, "generate?model=celeba-flow", "#generate-direction-0", grid,
            "api/generate", patient),
    }  # fmt: skip
    result: dict[str, Any] = {**facts, "unit": "milliseconds"}
    for name, measure in both.items():
        result[name] = {"one_by_one": measure(True), "in_a_stream": measure(False),
                        "load_average": round(os.getloadavg()[0], 1)}  # fmt: skip
        print(name, result[name])
        write("studio_page", result)


# -- pictures ----------------------------------------------------------------------------------

PLACES = {
    "generate": "generate?model=celeba-flow&seed=4&temperature=0.8&directions=1.2,0,-0.8",
    "interpolate": "interpolate?model=mnist-flow&a=sample:2&b=sample:5",
    "project": "project?base=none",
    "style": "style?mix=candy:0.4,mosaic:0.6&size=384&cut=45",
    "dynamics": "dynamics?model=duffing&t=40",
    "algebra": "algebra?model=mnist-flow&n=3",
    "edit": "edit?model=celeba-attributes&wish=Smiling",
}
#: An 8 that was not drawn with care, as shares of the canvas.
DRAWN = [
    (0.62, 0.28), (0.5, 0.22), (0.38, 0.3), (0.42, 0.42), (0.56, 0.52), (0.64, 0.64), (0.58, 0.77),
    (0.44, 0.78), (0.36, 0.66), (0.44, 0.54), (0.58, 0.44), (0.66, 0.34), (0.6, 0.27),
]  # fmt: skip


def screenshots(page: Page, address: str) -> None:
    folder = HERE.parent / "docs" / "images"
    for name, place in PLACES.items():
        page.goto("about:blank")
        page.goto(f"{address}#{place}")
        page.locator(f"#{name}:visible").wait_for()
        if name == "project":
            settled(page)
            box = page.locator("#project-pad canvas").bounding_box()
            assert box is not None
            points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in DRAWN]
            page.mouse.move(*points[0])
            page.mouse.down()
            for point in points[1:]:
                page.mouse.move(*point, steps=4)
            page.mouse.up()
        settled(page)
        settled(page)
        path = folder / f"studio-{name}.png"
        page.screenshot(path=path)
        shrink(path)
        print(f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB)")


def shrink(path: Path) -> None:
    """As small as PNG makes it; in 256 colours where that is more than a document should hold."""
    from PIL import Image

    picture = Image.open(path).convert("RGB")
    picture.save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        colours = picture.quantize(256, Image.Quantize.MEDIANCUT)
        picture.quantize(palette=colours, dither=Image.Dither.FLOYDSTEINBERG).save(
            path, optimize=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--screenshots", action="store_true", help="write docs/images/studio-*.png")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("there is no chromium: install it first")
    with studio() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
        context.set_default_timeout(120_000)
        page = context.new_page()
        if given.screenshots:
            screenshots(page, address)
        else:
            measured(page, address, {"browser": browser.version})
        browser.close()


if __name__ == "__main__":
    main()
