// x(t) = g⁻¹ e^{tK} g(x₀): a start, all times at once, modes on and off.
import { $, Job, announce, make, number, paint, within } from "../../kit.js";
import { complexPlane, node, path, plot, redrawn, tall } from "../../plot.js";

/** Half of the points of a trajectory; the start is between the halves. */
const HALF = 200;
const SPANS = [1, 2, 5, 10];

const complex = ([re, im]) => (im ? `${number(re, 2)} ± ${number(Math.abs(im), 2)} i` : number(re, 2));

function rhythm({ eigenvalue: [re, im] }) {
  const parts = [];
  if (im) parts.push(`period ${number((2 * Math.PI) / Math.abs(im))}`);
  if (re < 0) parts.push(`halves in ${number(Math.LN2 / -re)}`);
  if (re > 0) parts.push(`doubles in ${number(Math.LN2 / re)}`);
  return parts.join(", ") || "constant";
}

export function dynamics(studio) {
  const stage = $("dynamics").querySelector(".stage");
  const model = $("dynamics-model"), slider = $("dynamics-t"), span = $("dynamics-span"), truth = $("dynamics-truth");
  const job = new Job(stage, stage, model);
  /** The model whose facts these are: another may be chosen, and not yet known. */
  let known = null;
  const [across, up] = [$("dynamics-x"), $("dynamics-y")];
  let facts = null, start = [], off = new Set(), inputs = [], run = null, plane = null, series = null, playing = 0;

  const reach = () => facts.horizon * Number(span.value);
  const time = () => (slider.value / HALF) * reach();
  const usualStart = () => facts.ranges.map(([lo, hi]) => Number(((lo + hi) / 2 + 0.3 * (hi - lo)).toPrecision(2)));

  const settings = () => known !== model.value || !facts ? { model: model.value } : {
    model: model.value, start: String(start) === String(usualStart()) ? "" : start.map((v) => Number(v.toFixed(3))).join(","),
    t: slider.value === "0" ? "" : slider.value, span: span.value === "2" ? "" : span.value, off: [...off].sort().join(","),
    axes: `${across.value},${up.value}` === "0,1" ? "" : `${across.value},${up.value}`, truth: truth.checked ? "" : 0,
  };

  function ask() {
    if (known !== model.value) return;
    job.ask("dynamics", () => ({ model: model.value, start, t0: -reach(), t1: reach(), points: 2 * HALF + 1, off: [...off] }), (answer) => {
      run = { ...answer, states: seen(answer.states), reference: answer.reference && seen(answer.reference) };
      $("dynamics-truth-row").hidden = !answer.reference;
      drawPlane();
      drawSeries();
      place();
    });
  }

  /** Both ways from the start until the frame is left: beyond, nothing was ever learned. */
  function seen(states) {
    const inside = (state) => state.every((v, k) => {
      const [lo, hi] = facts.ranges[k], room = 0.3 * (hi - lo);
      return v !== null && v > lo - room && v < hi + room;
    });
    const gone = states.map((state) => !inside(state));
    const last = gone.indexOf(true, HALF + 1), first = gone.lastIndexOf(true, HALF - 1);
    return states.map((state, m) => ((last >= 0 && m > last) || (first >= 0 && m < first) ? state.map(() => null) : state));
  }

  const shown = () => (run?.reference && truth.checked ? run.reference : null);

  function drawPlane() {
    if (!run || facts.names.length < 2) return;
    const [i, j] = [Number(across.value), Number(up.value)];
    const axis = (k) => {
      const [lo, hi] = facts.ranges[k], room = 0.12 * (hi - lo);
      return { from: lo - room, to: hi + room, name: facts.names[k] };
    };
    plane = plot($("dynamics-plane"), { across: axis(i), up: axis(j), height: tall(), label: `Phase plane of ${facts.names[i]} and ${facts.names[j]} with the trajectory from the start` });
    const line = (states, given) => plane.marks.append(node("path", { ...given, d: path(states.map((s) => [s[i] === null ? null : plane.x(s[i]), s[j] === null ? null : plane.y(s[j])])) }));
    if (shown()) line(shown(), { class: "line truth" });
    line(run.states.slice(0, HALF + 1), { class: "line c0 past" });
    line(run.states.slice(HALF), { class: "line c0" });
    plane.marks.append(node("circle", { class: "start", r: 6, cx: plane.x(start[i]), cy: plane.y(start[j]) }));
    plane.now = node("circle", { class: "now", r: 7 });
    plane.marks.append(plane.now);
    place();
  }

  function drawSeries() {
    if (!run) return;
    const count = Math.min(6, facts.names.length);
    const lo = Math.min(...facts.ranges.slice(0, count).map((r) => r[0])), hi = Math.max(...facts.ranges.slice(0, count).map((r) => r[1]));
    const room = 0.12 * (hi - lo), T = reach();
    series = plot($("dynamics-series"), {
      across: { from: -T, to: T, name: "time t" }, up: { from: lo - room, to: hi + room, name: facts.names.slice(0, count).join(", ") },
      height: 210, label: `${facts.names.slice(0, count).join(", ")} over time from ${number(-T)} to ${number(T)}`,
    });
    for (let k = 0; k < count; k++) {
      const line = (states, given) => series.marks.append(node("path", { ...given, d: path(states.map((s, m) => [series.x(run.times[m]), s[k] === null ? null : series.y(s[k])])) }));
      if (shown()) line(shown(), { class: "line truth" });
      line(run.states, { class: `line c${k}` });
    }
    series.cursor = node("line", { class: "cursor", y1: series.y(series.axes.up.from), y2: series.y(series.axes.up.to) });
    series.marks.append(series.cursor);
    place();
  }

  function drawSpectrum() {
    if (!facts) return;
    const points = facts.modes.flatMap(({ eigenvalue: [re, im] }, k) => {
      const className = off.has(k) ? "off" : `c${k % 6}`;
      const title = `mode ${k + 1}: ${complex([re, im])}`;
      return im ? [{ re, im, className, title, r: 6 }, { re, im: -im, className, title, r: 6 }] : [{ re, im, className, title, r: 6 }];
    });
    complexPlane($("dynamics-spectrum"), { points, label: `Eigenvalues of K: ${facts.modes.map((m) => complex(m.eigenvalue)).join("; ")}` });
  }

  /** The state at the slider's time: nothing is asked. */
  function place() {
    if (!facts) return;
    const t = time();
    paint(slider, number(t, 3));
    if (!run) return;
    const at = Number(slider.value) + HALF, state = run.states[at];
    if (plane?.now && facts.names.length > 1) {
      const [x, y] = [state[across.value], state[up.value]];
      plane.now.setAttribute("visibility", x === null || y === null ? "hidden" : "visible");
      if (x !== null && y !== null) {
        plane.now.setAttribute("cx", Math.min(1e5, Math.max(-1e5, plane.x(x))));
        plane.now.setAttribute("cy", Math.min(1e5, Math.max(-1e5, plane.y(y))));
      }
    }
    if (series?.cursor) for (const end of ["x1", "x2"]) series.cursor.setAttribute(end, series.x(t));
    const told = state[0] === null ? `At t = ${number(t, 3)} the state is far from all that the model was trained on` : `At t = ${number(t, 3)}: ${facts.names.slice(0, 6).map((name, k) => `${name} = ${number(state[k])}`).join(", ")}`;
    const legend = [];
    if (shown()) legend.push("Dashed: the true system.");
    legend.push("Dotted in the plane: the past.");
    $("dynamics-result").replaceChildren(make("strong", { textContent: `${told}.` }), ` ${legend.join(" ")}`);
    announce(told);
  }

  function build(given) {
    inputs = facts.names.map((name, k) => {
      const [lo, hi] = facts.ranges[k];
      const input = make("input", { type: "number", id: `dynamics-start-${k}`, step: Number(((hi - lo) / 100).toPrecision(1)), value: start[k] });
      input.addEventListener("change", () => {
        start[k] = within(input.value, lo - (hi - lo), hi + (hi - lo), start[k]);
        input.value = start[k];
        ask();
        studio.changed(true);
      });
      return input;
    });
    $("dynamics-start").replaceChildren(...inputs.slice(0, 12).map((input, k) => make("div", {}, make("label", { for: input.id, textContent: facts.names[k] }), input)));
    const axes = (given.get("axes") ?? "0,1").split(",").map(Number);
    [across, up].forEach((select, which) => {
      select.replaceChildren(...facts.names.map((name, k) => make("option", { value: k, textContent: name })));
      select.value = axes[which] in facts.names ? axes[which] : which;
    });
    $("dynamics-legend").replaceChildren(...facts.names.slice(0, 6).map((name, k) => make("span", { class: `c${k}` }, make("i", { class: "swatch" }), name)));
    $("dynamics-axes").hidden = facts.names.length < 3;
    $("dynamics-plane").parentElement.hidden = facts.names.length < 2;
    span.replaceChildren(...SPANS.map((n) => make("option", { value: n, textContent: `−${number(n * facts.horizon, 2)} … ${number(n * facts.horizon, 2)}${n === 1 ? ", as trained" : ` (${n} × as trained)`}` })));
    $("dynamics-modes").replaceChildren(...facts.modes.map((mode, k) => {
      const box = make("input", { type: "checkbox", checked: !off.has(k) });
      box.addEventListener("change", () => {
        if (box.checked) off.delete(k);
        else off.add(k);
        drawSpectrum();
        ask();
        studio.changed(true);
      });
      return make("label", { class: `check c${k % 6}` }, box, make("span", { class: "swatch", "aria-hidden": "true" }), make("span", {}, `λ = ${complex(mode.eigenvalue)}`, make("br"), make("span", { class: "hint", textContent: rhythm(mode) })));
    }));
  }

  async function open(given) {
    stop();
    if (!studio.offer(model, ["dynamics"], given.get("model"), job, "pendulum")) return;
    job.drop();
    const chosen = model.value;
    known = null;
    let found;
    try {
      found = await studio.facts(chosen);
    } catch (problem) {
      if (problem.status !== 401 && chosen === model.value) job.fail(problem.message);
      return;
    }
    if (chosen !== model.value) return;
    facts = found;
    known = chosen;
    const numbers = (given.get("start") || "").split(",").filter(Boolean).map(Number);
    start = numbers.length === facts.names.length && numbers.every(Number.isFinite) ? numbers : usualStart();
    off = new Set((given.get("off") || "").split(",").filter(Boolean).map(Number).filter((k) => k in facts.modes));
    truth.checked = given.get("truth") !== "0";
    run = plane = series = null;
    build(given);
    span.value = SPANS.includes(Number(given.get("span"))) ? given.get("span") : 2;
    slider.value = Math.round(within(given.get("t"), -HALF, HALF, 0));
    drawSpectrum();
    place();
    ask();
  }

  // ── the pointer in the plane ──
  const host = $("dynamics-plane");
  host.classList.add("press");
  let held = false;
  function move(event) {
    if (!plane) return;
    const places = plane.back(event);
    [Number(across.value), Number(up.value)].forEach((k, which) => {
      const [lo, hi] = facts.ranges[k], room = 0.12 * (hi - lo);
      start[k] = Number(Math.min(hi + room, Math.max(lo - room, places[which])).toFixed(3));
      inputs[k].value = start[k];
    });
    ask();
    studio.changed();
  }
  host.addEventListener("pointerdown", (event) => { held = true; host.setPointerCapture(event.pointerId); event.preventDefault(); move(event); });
  host.addEventListener("pointermove", (event) => held && move(event));
  for (const name of ["pointerup", "pointercancel"]) host.addEventListener(name, () => (held = false));

  // ── play ──
  const play = $("dynamics-play");
  function stop() {
    cancelAnimationFrame(playing);
    playing = 0;
    play.setAttribute("aria-pressed", "false");
    play.textContent = "Play";
  }
  play.addEventListener("click", () => {
    if (playing) { stop(); studio.changed(); return; }
    play.setAttribute("aria-pressed", "true");
    play.textContent = "Pause";
    let at = Number(slider.value) >= HALF ? -HALF : Number(slider.value), last = null;
    const step = (now) => {
      if (last !== null) at += (now - last) * 0.05;
      last = now;
      slider.value = Math.round(Math.min(HALF, at));
      place();
      if (at >= HALF) { stop(); studio.changed(); }
      else playing = requestAnimationFrame(step);
    };
    playing = requestAnimationFrame(step);
  });

  slider.addEventListener("input", () => { stop(); place(); studio.changed(); });
  span.addEventListener("change", () => { ask(); place(); studio.changed(true); });
  for (const select of [across, up]) select.addEventListener("change", () => { drawPlane(); studio.changed(true); });
  truth.addEventListener("change", () => { drawPlane(); drawSeries(); studio.changed(true); });
  model.addEventListener("change", () => {
    const chosen = model.value;
    open(new URLSearchParams({ model: chosen })).then(() => studio.changed(true));
  });
  redrawn($("dynamics-plane"), drawPlane);
  redrawn($("dynamics-series"), drawSeries);
  redrawn($("dynamics-spectrum"), drawSpectrum);
  return { open, settings, leave: stop };
}
