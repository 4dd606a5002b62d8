"""The page of the studio, in a real browser against the real server."""

import base64
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from test_strangers import CODE

from conftest import PATIENCE
from linearizer.apps import registry
from linearizer.runs.store import save

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("there is no chromium: make browser installs it on CI", allow_module_level=True)

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".venv/node/node_modules/axe-core/axe.min.js"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]  # fmt: skip
TABS = ["generate", "interpolate", "project", "style", "forecast", "dynamics", "edit", "mirror",
        "algebra"]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a studio with the shipped models, and one of a stranger's application."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    runs = tmp_path_factory.mktemp("runs")
    file = runs.parent / "mirror.py"
    file.write_text(CODE)
    mirror = registry.load_app(f"{file}:APP")
    save(mirror.make(mirror.Config()), runs / "mine")
    del registry._registered["mirror"]
    main = "from linearizer.cli import main; main()"
    command = [sys.executable, "-c", main, "--app", f"{file}:APP", "serve"]
    log = (runs.parent / "studio.log").open("w+")
    process = subprocess.Popen(
        [*command, "--port", str(port), "--runs", str(runs)],
        stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(10 * PATIENCE):
            try:
                urllib.request.urlopen(f"{address}/api/health", timeout=PATIENCE).close()
                break
            except OSError:
                if process.poll() is not None:
                    pytest.fail((runs.parent / "studio.log").read_text())
                time.sleep(0.1)
        else:
            pytest.fail("the studio did not start")
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE)
        log.close()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def studio(server, browser):
    """Open the studio at an address; nothing may be said in the console, and no host but ours."""
    contexts, said, elsewhere = [], [], []

    def visit(url):
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != server:
            elsewhere.append(url)

    def open(place="", expect_errors=False, prepare=None, **settings):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **settings})
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.on("request", lambda request: visit(request.url))
        page.on("pageerror", lambda error: said.append(str(error)))
        if not expect_errors:
            page.on("console", lambda m: said.append(m.text) if m.type in WORRIES else None)
        if prepare:
            prepare(page)
        page.goto(f"{server}/{place}")
        contexts.append(context)
        return page

    yield open
    for context in contexts:
        context.close()
    assert not said
    assert not elsewhere


WORRIES = ("error", "warning")


def until(page, truth, arg=None):
    """Wait for a truth of the page; wait_for_function would need eval, which the page forbids."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(f"arg => {truth}", arg):
        assert time.monotonic() < end, truth
        page.wait_for_timeout(30)


def source(page, where):
    return page.locator(where).get_attribute("src")


def appears(page, where):
    """The picture once there is one."""
    until(page, "document.querySelector(arg)?.getAttribute('src')?.startsWith('data:')", where)
    return source(page, where)


def changes(page, where, before, attribute="src"):
    """The attribute once it is another than before."""
    until(
        page,
        "{const v = document.querySelector(arg[0])?.getAttribute(arg[1]);"
        " return v && v !== arg[2]}",
        [where, attribute, before],
    )
    return page.locator(where).first.get_attribute(attribute)


def settled(page):
    """Nothing is under way, and the address is written."""
    until(page, "!document.querySelector('[aria-busy=true]')")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(250)


def slide(page, where, value):
    """Move a slider as a person does, but to a value."""
    page.locator(where).fill(str(value))


def drawn(page, where, places):
    """A stroke on a canvas, through places given as shares of its sides."""
    canvas = page.locator(where)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in places]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=5)
    page.mouse.up()


def samples(page):
    return page.locator("#generate-grid img").evaluate_all("all => all.map(one => one.src)")


def pixels(url):
    """The picture of a data URL, as rows of numbers."""
    import numpy as np
    from PIL import Image

    data = base64.b64decode(url.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(data)).convert("L"), dtype=float)


def photo():
    """A picture that nobody has seen: waves of colour, as the bytes of a PNG."""
    import numpy as np
    from PIL import Image

    y, x = np.mgrid[0:171, 0:256] / 20
    waves = np.stack([np.sin(x), np.cos(x + y), np.sin(y * 0.7 - x)], -1) * 127 + 128
    file = io.BytesIO()
    Image.fromarray(waves.astype("uint8")).save(file, "PNG")
    return {"name": "waves.png", "mimeType": "image/png", "buffer": file.getvalue()}


def test_generate(studio):
    page = studio("#generate?model=mnist-flow&seed=7")
    first = changes(page, "#generate-grid img", None)
    assert len(samples(page)) == 16
    until(page, "!document.querySelector('#race-loop-time').textContent.includes('–')")
    assert "10⁻" in page.locator("#generate-difference strong").text_content()
    settled(page)
    seventh = samples(page)

    page.locator("#generate-dice").click()
    changes(page, "#generate-grid img", first)
    settled(page)
    seed = page.locator("#generate-seed").input_value()
    assert seed != "7" and page.url.endswith(f"seed={seed}")
    page.go_back()
    until(page, "document.querySelector('#generate-grid img').src === arg", first)
    assert page.locator("#generate-seed").input_value() == "7"

    slide(page, "#generate-direction-0", 2.5)
    moved = changes(page, "#generate-grid img", first)
    slide(page, "#generate-steps", 300)
    assert page.locator("#generate-steps-value").text_content() == "1,000"
    until(page, "document.querySelector('#race-loop-name').textContent.includes('1,000')")
    slide(page, "#generate-temperature", 0.5)
    changes(page, "#generate-grid img", moved)
    page.locator("#generate-n").select_option("4")
    until(page, "document.querySelectorAll('#generate-grid img').length === 4")
    settled(page)
    shown = samples(page)
    for word in ("seed=7", "steps=1000", "temperature=0.5", "directions=2.5", "n=4"):
        assert word in page.url

    other = studio(page.url.partition("/#")[2].join(["#", ""]))
    until(other, "document.querySelectorAll('#generate-grid img').length === 4")
    settled(other)
    assert samples(other) == shown
    assert other.locator("#generate-direction-0").input_value() == "2.5"
    again = studio("#generate?model=mnist-flow&seed=7")
    changes(again, "#generate-grid img", None)
    settled(again)
    assert samples(again) == seventh


def test_interpolate(studio):
    page = studio("#interpolate?model=mnist-flow&a=sample:1&b=sample:4")
    middle = appears(page, "#interpolate-geodesic")
    fade = appears(page, "#interpolate-fade")
    assert page.locator("#interpolate-strip img").count() == 9
    until(page, "document.querySelector('#interpolate-b').textContent.includes('dB')")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    slider = page.locator("#interpolate-s")
    box = slider.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2, steps=8)
    page.mouse.up()
    assert slider.input_value() == "0"
    assert source(page, "#interpolate-geodesic") != middle
    assert source(page, "#interpolate-fade") != fade
    start = pixels(source(page, "#interpolate-geodesic"))
    assert abs(start - pixels(source(page, "#interpolate-a .shown"))).mean() < 12
    assert not [url for url in asked if "/api/" in url]  # dragging is local
    until(page, "location.hash.includes('s=0')")

    page.locator("#interpolate-a label", has_text="Draw").click()
    drawn(page, "#interpolate-a canvas", [(0.3, 0.25), (0.7, 0.25), (0.45, 0.8)])
    changes(page, "#interpolate-strip img", source(page, "#interpolate-strip img:first-child"))
    settled(page)
    assert "a=draw:" in page.url
    page.locator("#interpolate-b label", has_text="Upload").click()
    before = source(page, "#interpolate-geodesic")
    page.set_input_files("#interpolate-b-file", photo())
    slide(page, "#interpolate-s", 32)
    changes(page, "#interpolate-geodesic", before)


def test_project(studio):
    page = studio("#project?base=none")
    blank = appears(page, "#project-once")
    drawn(page, "#project-pad canvas", [(0.35, 0.25), (0.65, 0.25), (0.65, 0.3)])
    first = changes(page, "#project-once", blank)
    drawn(page, "#project-pad canvas", [(0.65, 0.3), (0.45, 0.8)])
    changes(page, "#project-once", first)
    settled(page)
    seven = source(page, "#project-once")
    assert source(page, "#project-twice") == seven  # to the last of 256 greys
    assert "10⁻" in page.locator("#project-difference").text_content()
    assert "score" in page.locator("#project-verdict").text_content()
    assert pixels(seven).max() > 150

    link = page.url.partition("/#")[2]
    assert "draw=" in link
    other = studio(f"#{link}")
    appears(other, "#project-once")
    settled(other)
    assert source(other, "#project-once") == seven

    page.locator("#project-example").click()
    until(page, "location.hash.includes('base=sample')")
    page.go_back()
    until(page, "document.querySelector('#project-once').src === arg", seven)
    usual, named = (
        page.locator("#project-rank").input_value(),
        page.locator("#project-rank-value").text_content(),
    )
    slide(page, "#project-rank", 0)
    low = changes(page, "#project-once", seven)
    assert page.locator("#project-rank-value").text_content() != named
    until(page, "location.hash.includes('rank=')")
    assert "base=" not in page.url  # the digit is no longer below the drawing
    slide(page, "#project-rank", usual)
    changes(page, "#project-once", low)

    page.get_by_role("button", name="Undo").click()
    until(page, "document.querySelector('#project-pad canvas').ariaLabel.includes('1 stroke')")
    page.get_by_role("button", name="Eraser").click()
    drawn(page, "#project-pad canvas", [(0.3, 0.25), (0.7, 0.25)])
    settled(page)
    rubbed = source(page, "#project-once")
    page.get_by_role("button", name="Clear").click()
    changes(page, "#project-once", rubbed)
    page.locator("#project-example").click()
    until(page, "location.hash.includes('base=sample')")
    settled(page)
    sample = source(page, "#project-once")
    page.set_input_files("#project-file", photo())
    changes(page, "#project-once", sample)
    assert "strange" in page.locator("#project-verdict").text_content().lower()

    ring = "Array.from({length: n}, (_, i) => [Math.round(2000 + 1999 * Math.cos(i / 99)), i])"
    text = f"n => import('/static/pad.js').then(pad => pad.encodeStrokes([{{points: {ring}}}]))"
    assert len(page.evaluate(text, 600)) == 2400  # each point has four letters
    assert 800 < len(page.evaluate(text, 4000)) <= 2400  # thinned, not lost


def test_style(studio):
    page = studio("#style?size=128")
    example = appears(page, "#style-after")
    assert appears(page, "#style-before") != example
    page.set_input_files("#style-file", photo())
    candy = changes(page, "#style-after", example)
    slide(page, "#style-weight-0", 0.5)
    slide(page, "#style-weight-1", 0.5)
    mixed = changes(page, "#style-after", candy)
    assert re.match(r"A = 0\.5 \w+ \+ 0\.5 \w+", page.locator("#style-operator").text_content())
    settled(page)
    mixed = source(page, "#style-after")
    slide(page, "#style-strength", 0.4)
    weak = changes(page, "#style-after", mixed)
    page.locator("#style-undo").check()
    changes(page, "#style-after", weak)
    until(page, "document.querySelector('#style-result').textContent.includes('dB')")
    difference = pixels(source(page, "#style-after")) - pixels(source(page, "#style-before"))
    assert abs(difference).mean() < 3  # of 255: the photo is back
    slide(page, "#style-cut", 80)
    until(page, "location.hash.includes('cut=80') && location.hash.includes('undo=1')")
    for word in ("mix=candy:0.5,mosaic:0.5", "strength=0.4", "size=128"):
        assert word in page.url
    assert "waves.png" in page.locator("#style-photo").text_content()
    page.locator("#style-size").select_option("512")
    until(page, "document.querySelector('#style-result').textContent.includes('384 pixels')")
    assert page.locator("#style .problem").is_hidden()
    clear = page.evaluate(
        """async () => {
          const canvas = new OffscreenCanvas(200, 150);
          canvas.getContext("2d");
          const { readPicture } = await import("/static/kit.js");
          return readPicture(await canvas.convertToBlob(), {}, 512);
        }"""
    )
    assert pixels(clear).min() > 250  # transparent is white, as on the server
    page.set_input_files(
        "#style-file", {"name": "no.png", "mimeType": "image/png", "buffer": b"no"}
    )
    page.get_by_role("alert").filter(has_text="no.png").wait_for()


def test_dynamics(studio):
    page = studio("#dynamics?model=duffing")
    line = "#dynamics-plane path.c0:not(.past)"
    first = changes(page, line, None, "d")
    page.locator("#dynamics-spectrum circle.dot").first.wait_for()
    box = page.locator("#dynamics-plane svg").bounding_box()
    page.mouse.click(box["x"] + 0.6 * box["width"], box["y"] + 0.4 * box["height"])
    second = changes(page, line, first, "d")
    settled(page)
    assert "start=" in page.url
    start = [page.locator(f"#dynamics-start-{k}").input_value() for k in (0, 1)]

    now = "#dynamics-plane circle.now"
    at = [page.locator(now).get_attribute(c) for c in ("cx", "cy")]
    slide(page, "#dynamics-t", 60)
    ahead = [page.locator(now).get_attribute(c) for c in ("cx", "cy")]
    slide(page, "#dynamics-t", -10)
    back = [page.locator(now).get_attribute(c) for c in ("cx", "cy")]
    assert at != ahead != back != at
    assert page.locator("#dynamics-t-value").text_content().startswith("−")
    page.locator("#dynamics-modes input").first.uncheck()
    changes(page, line, second, "d")
    assert page.locator("#dynamics-spectrum .off").count() >= 1
    settled(page)
    assert "off=0" in page.url and "t=-10" in page.url

    other = studio(f"#{page.url.partition('/#')[2]}")
    changes(other, line, None, "d")
    assert other.locator(line).get_attribute("d") == page.locator(line).get_attribute("d")
    assert [other.locator(f"#dynamics-start-{k}").input_value() for k in (0, 1)] == start
    other.locator("#dynamics-start-0").fill("0.5")
    other.keyboard.press("Enter")
    changes(other, line, page.locator(line).get_attribute("d"), "d")
    other.locator("#dynamics-model").select_option("pendulum")
    until(other, "document.querySelector('#dynamics-plane svg').ariaLabel.includes('θ')")


def test_algebra(studio):
    page = studio("#algebra?model=pendulum&n=3")
    page.locator("#algebra-laws tbody tr").first.wait_for()
    rows = page.locator("#algebra-laws tbody tr").all_text_contents()
    assert len(rows) > 5 and any("10⁻" in row for row in rows)
    page.locator("#algebra-plane circle.dot").first.wait_for()
    assert page.locator("#algebra-plane-card h3").text_content() == "Eigenvalues of f"
    assert page.locator("#algebra-plane circle.axis-line").count() == 1  # the unit circle
    assert page.locator("#algebra-plane circle.dot").count() == 2  # with the conjugate
    page.locator("#algebra-values circle.dot").first.wait_for()
    assert "dynamics" in page.locator("#algebra-facts").text_content()
    slide(page, "#algebra-k", 3)
    until(page, "location.hash.includes('k=3')")
    page.locator("#algebra-model").select_option("mnist-projector")
    page.locator("#algebra-vectors img").first.wait_for()
    assert page.locator("#algebra-vectors figure").count() == 3
    page.locator("#algebra-values path.line").wait_for()
    assert "projector" in page.locator("#algebra-facts").text_content()
    assert "model=mnist-projector" in page.url
    page.go_back()
    until(page, "document.querySelector('#algebra-facts').textContent.includes('dynamics')")
    assert page.locator("#algebra-model").input_value() == "pendulum"


def test_a_page_of_an_application_that_has_none(studio):
    page = studio("#mirror?seed=3")
    third = appears(page, "#mirror-x img")
    appears(page, "#mirror-y img")
    appears(page, "#mirror-back img")
    settled(page)
    assert "10⁻" in page.locator("#mirror-again").text_content()
    assert "its mirror image <b>" in page.locator("#mirror .lede").text_content()
    page.locator("#mirror-seed").fill("4")
    page.keyboard.press("Tab")
    fourth = changes(page, "#mirror-x img", third)
    settled(page)
    assert page.url.endswith("seed=4")
    page.go_back()
    until(page, "document.querySelector('#mirror-x img').src === arg", third)
    assert fourth != third
    page.locator("#tab-algebra").click()
    mine = page.locator("#algebra-model option[value$='/mine']").get_attribute("value")
    page.locator("#algebra-model").select_option(mine)
    page.locator("#algebra-laws tbody tr").first.wait_for()


def test_edit(studio):
    page = studio("#edit?model=celeba-attributes")
    appears(page, "#edit-before")
    same = appears(page, "#edit-after")
    settled(page)
    names = page.locator("#edit-scores tbody tr")
    assert names.count() == 40
    page.get_by_role("button", name="Smiling: left as it is").click()
    smiling = changes(page, "#edit-after", same)
    settled(page)
    assert "wish=Smiling" in page.url
    assert "Smiling" in names.first.text_content()
    page.get_by_role("button", name="Smiling: with").click()
    changes(page, "#edit-after", smiling)
    settled(page)
    without = source(page, "#edit-after")
    slide(page, "#edit-wish-0", 4)
    set_to = changes(page, "#edit-after", without)
    until(
        page, "document.querySelector('#edit-scores tbody tr td:nth-child(3)').textContent === '4'"
    )
    slide(page, "#edit-strength", 0)
    changes(page, "#edit-after", set_to)
    page.locator("#edit-model").select_option("mnist-attributes")
    page.get_by_role("button", name="3: left as it is").click()
    until(page, "document.querySelector('#edit-caption').textContent === 'as a 3'")
    until(page, "document.querySelectorAll('#edit-scores tbody tr').length === 10")
    page.locator("#edit-source label", has_text="Draw").click()
    before = source(page, "#edit-before")
    drawn(page, "#edit-source canvas", [(0.5, 0.2), (0.5, 0.8)])
    changes(page, "#edit-before", before)


def test_tabs_by_keyboard(studio):
    page = studio("")
    page.locator("#tab-generate[aria-selected=true]").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("Tab")
    for name in [*TABS[1:], TABS[0]]:
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.id") == f"tab-{name}"
        assert page.locator(f"#{name}").is_visible()
        assert page.locator("[role=tabpanel]:visible").count() == 1
    page.keyboard.press("End")
    assert page.locator("#algebra").is_visible()
    page.keyboard.press("Home")
    assert page.locator("#generate").is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "generate"
    page.go_back()
    page.locator("#algebra").wait_for()
    settled(page)


def test_draw_by_keyboard(studio):
    page = studio("#project?base=none")
    blank = appears(page, "#project-once")
    settled(page)
    page.evaluate(
        """() => {
          window.said = [];
          const line = document.querySelector("#announcer");
          new MutationObserver(() => said.push(line.textContent)).observe(line, {childList: true});
        }"""
    )
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    pad = page.get_by_role("application", name="Drawing")
    cursor = page.locator("#project-pad .cursor")
    sync_api.expect(pad).to_have_accessible_description(re.compile("Arrow keys .* Space .*"))

    def image():
        return pad.evaluate("one => one.toDataURL()")

    def press(*keys):
        for key in keys:
            page.keyboard.press(key)

    empty = image()
    assert not cursor.is_visible()
    page.locator("#project").focus()
    press("Tab")
    assert pad.evaluate("one => one === document.activeElement")
    assert pad.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    before, side = cursor.bounding_box(), pad.bounding_box()["height"]
    press("ArrowUp", "Shift+ArrowUp", "Shift+ArrowUp")
    assert before["y"] - cursor.bounding_box()["y"] == pytest.approx(side * 9 / 32, abs=1)
    assert image() == empty and not asked  # the cursor is no part of the drawing

    press("Space")
    dot = changes(page, "#project-once", blank)
    press(*["Shift+ArrowDown"] * 4, "ArrowDown")
    changes(page, "#project-once", dot)
    settled(page)
    assert "draw=" not in page.url  # as with the mouse: once the pen is lifted
    press("Escape", "Escape")
    until(page, "location.hash.includes('draw=')")
    settled(page)
    line, one = image(), source(page, "#project-once")
    assert [word for word in page.evaluate("said") if "Pen" in word] == ["Pen down", "Pen up"]
    press("ArrowRight")
    assert image() == line
    other = studio("#" + page.url.partition("/#")[2])
    appears(other, "#project-once")
    settled(other)
    assert source(other, "#project-once") == one
    assert other.locator("#project-pad canvas").evaluate("one => one.toDataURL()") == line

    press("Enter", "Shift+ArrowRight", "Tab")  # who leaves lifts the pen
    assert page.evaluate("document.activeElement.textContent") == "Pen"
    until(page, "said.at(-1) === 'Pen up'")
    assert not cursor.is_visible()
    sync_api.expect(pad).to_have_accessible_name("Drawing: 2 strokes")
    press("Tab", "Tab", "Enter")  # undo
    sync_api.expect(pad).to_have_accessible_name("Drawing: 1 stroke")
    assert image() == line
    press("Tab", "Enter")  # clear
    until(page, "document.querySelector('#project-once').src === arg", blank)
    assert image() == empty


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is missing: make browser installs it")
def test_accessible(studio):
    page = studio("#algebra?model=pendulum", bypass_csp=True)  # whose laws take no time
    page.locator("#tab-algebra[aria-selected=true]").wait_for()
    page.evaluate(AXE.read_text())
    found = []
    for name in TABS:
        page.locator(f"#tab-{name}").click()
        settled(page)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            result = page.evaluate("axe.run()")
            assert len(result["passes"]) > 10
            found += [
                (name, scheme, violation["id"], node["target"], node.get("failureSummary"))
                for violation in result["violations"]
                for node in violation["nodes"]
            ]
    assert not found


def test_on_a_phone(studio):
    page = studio("#algebra?model=pendulum", viewport={"width": 360, "height": 740}, has_touch=True)
    page.locator("#tab-algebra[aria-selected=true]").wait_for()
    for name in TABS:
        page.locator(f"#tab-{name}").click()
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
        small = page.locator(f"#{name} button:visible, #{name} select:visible").evaluate_all(
            "all => all.filter(one => one.getBoundingClientRect().height < 32).map(one => one.id)"
        )
        assert not small, name


def test_what_goes_wrong(studio):
    refused = {"error": "generate: expected fewer samples. Ask for less."}

    def answer(status, body, times=10**9):
        left = [times]

        def reply(route):
            if left[0] <= 0:
                return route.continue_()
            left[0] -= 1
            return route.fulfill(status=status, json=body, headers={"Retry-After": "0"})

        return reply

    def at(pattern, reply):
        return lambda page: page.route(pattern, reply)

    page = studio("", expect_errors=True, prepare=at("**/api/generate", answer(422, refused)))
    page.get_by_role("alert").filter(has_text=refused["error"]).wait_for()
    until(page, "!document.querySelector('#race-loop-time').textContent.includes('–')")
    assert page.get_by_role("alert").filter(has_text=refused["error"]).is_visible()

    busy = {"error": "the studio is busy."}
    page = studio("", expect_errors=True, prepare=at("**/api/generate", answer(503, busy, 1)))
    changes(page, "#generate-grid img", None)  # asked once more
    page = studio("", expect_errors=True, prepare=at("**/api/generate", answer(429, busy)))
    page.get_by_role("alert").filter(has_text="Asked twice").wait_for()

    listed = {"version": "1", "models": [], "limits": {}}
    page = studio("", prepare=at("**/api/models", answer(200, listed)))
    page.get_by_role("alert").filter(has_text="linearizer train flow").wait_for()

    asked = []

    def guarded(route):
        asked.append(route.request.headers.get("authorization"))
        if asked[-1] != "Bearer right":
            return route.fulfill(status=401, json={"error": "a token is needed."})
        return route.continue_()

    page = studio("", expect_errors=True, prepare=at("**/api/**", guarded))
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("does not know this token").wait_for()
    page.get_by_label("Token").fill("right")
    page.keyboard.press("Enter")
    changes(page, "#generate-grid img", None)
    assert asked[:2] == [None, "Bearer wrong"]
    page = studio("?token=right", prepare=at("**/api/**", guarded))
    changes(page, "#generate-grid img", None)
    assert "token" not in page.url

    law = {
        "law": "inverse",
        "formula": "f†f = 1",
        "error": 0.5,
        "tolerance": 0.1,
        "verdict": "failed",
        "note": "",
    }
    other = {
        **law,
        "error": None,
        "tolerance": None,
        "verdict": "not measured",
        "note": "too large",
    }
    broken = {
        "points": 3,
        "dtype": "float32",
        "laws": [law, other],
        "worst": 0.5,
        "passed": False,
        "complete": False,
        "measured": 1,
        "condition": {"X": 9.0},
        "digits": {"X": 6.0},
    }
    page = studio("#algebra?model=pendulum", prepare=at("**/api/certify**", answer(200, broken)))
    page.locator("#algebra-laws td.fails", has_text="fails: 0.5").wait_for()
    page.locator("#algebra-laws td", has_text="not measured: too large").wait_for()
    page.locator("#algebra-worst", has_text="1 of 2 laws are measured").wait_for()

    held = []
    late = at(re.compile(r"model\?model=duffing"), lambda route: held.append(route))
    page = studio("#dynamics?model=duffing", prepare=late)
    until(page, "document.querySelector('#dynamics-model').value === 'duffing'")
    page.locator("#dynamics-model").select_option("pendulum")
    until(page, "document.querySelector('#dynamics-plane svg')?.ariaLabel.includes('θ')")
    for route in held:
        route.continue_()
    settled(page)
    assert page.locator("#dynamics-start label").first.text_content() == "θ"
    assert held and "model=pendulum" in page.url

    held = []
    page = studio("", prepare=at("**/api/generate", lambda route: held.append(route)))
    page.locator("#generate .stage.slow[aria-busy=true]").wait_for()
    assert page.locator("#generate-grid .blank").count() == 16
    for route in held:
        route.continue_()
    changes(page, "#generate-grid img", None)
    settled(page)


def test_nothing_but_our_own_files():
    """No host is named in what is served, and every file that the page names is there."""
    static = ROOT / "src/linearizer/studio/static"
    for path in [*static.iterdir(), *ROOT.glob("src/linearizer/apps/*/page.*")]:
        text = path.read_text(encoding="utf-8")
        hosts = set(re.findall(r"https?://[^\s\"'<>)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not hosts, path.name
        assert "style=" not in text or path.suffix != ".html", path.name
        for name in re.findall(r"(?:static/|from \"(?:\./|\.\./\.\./))([\w.-]+)\"", text):
            assert (static / name).is_file(), (path.name, name)
