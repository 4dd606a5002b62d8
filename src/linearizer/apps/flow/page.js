// x = f(ε): one-step samples, the steps in B, and directions of the noise.
import { $, Job, announce, ask, crisp, dice, duration, make, number, paint, seedOf, show, within } from "../../kit.js";
import { Source } from "../../source.js";

const SOLVERS = { rk4: "Runge–Kutta 4", midpoint: "midpoint", euler: "Euler", exponential: "exponential" };
const USUAL = { seed: 0, n: 16, steps: 100, solver: "rk4", temperature: 1 };

export function generate(studio) {
  const stage = $("generate").querySelector(".stage");
  const race = $("generate-race").parentElement;
  const grid = $("generate-grid");
  const controls = { model: $("generate-model"), seed: $("generate-seed"), n: $("generate-n"), steps: $("generate-steps"), solver: $("generate-solver"), temperature: $("generate-temperature") };
  const job = new Job(stage, stage, controls.model), check = new Job(stage, race, controls.model);
  let sliders = [];

  const steps = () => Math.round(10 ** (controls.steps.value / 100));
  const directions = () => sliders.map((s) => Number(s.value));

  function settings() {
    const d = directions();
    while (d.length && !d.at(-1)) d.pop();
    const now = { seed: Number(controls.seed.value), n: Number(controls.n.value), steps: steps(), solver: controls.solver.value, temperature: Number(controls.temperature.value) };
    const other = Object.fromEntries(Object.entries(now).filter(([name, value]) => value !== USUAL[name]));
    return { model: controls.model.value, ...other, directions: d.join(",") };
  }

  function write() {
    paint(controls.steps, number(steps()));
    paint(controls.temperature, number(Number(controls.temperature.value)));
    for (const s of sliders) paint(s, number(Number(s.value)));
    $("race-loop-name").textContent = steps() === 1 ? "loop of 1 step" : `loop of ${number(steps())}`;
  }

  function draw() {
    write();
    job.ask("generate", () => ({
      model: controls.model.value, seed: seedOf(controls.seed), n: Number(controls.n.value), steps: steps(),
      solver: controls.solver.value, directions: directions(), temperature: Number(controls.temperature.value),
    }), ({ images, milliseconds, collapse_milliseconds: collapse }) => {
      const columns = Math.max(1, Math.ceil(Math.sqrt(images.length)));
      grid.style.setProperty("--columns", columns);
      while (grid.children.length > images.length) grid.lastChild.remove();
      while (grid.querySelectorAll("img").length < images.length) {
        grid.querySelector(".blank")?.remove();
        grid.append(make("img", { alt: "" }));
      }
      const shape = studio.entry(controls.model.value).shape;
      [...grid.children].forEach((img, i) => {
        crisp(img, shape);
        img.src = images[i];
      });
      grid.setAttribute("aria-label", `${images.length} samples of ${controls.model.value}, seed ${controls.seed.value}`);
      grid.title = `All ${images.length} in ${duration(milliseconds)}` + (collapse ? `; collapsing the steps took ${duration(collapse)}, once` : "");
      announce(`${images.length} samples in ${duration(milliseconds)}.`);
    });
  }

  function measure() {
    const asked = steps();
    check.later(450, "generate/check", () => ({ model: controls.model.value, seed: seedOf(controls.seed), steps: steps(), solver: controls.solver.value }), (a) => {
      const most = Math.max(a.loop_milliseconds, a.one_step_milliseconds);
      $("race-one").style.setProperty("--share", `${(100 * a.one_step_milliseconds) / most}%`);
      $("race-loop").style.setProperty("--share", `${(100 * a.loop_milliseconds) / most}%`);
      $("race-one-time").textContent = duration(a.one_step_milliseconds);
      $("race-loop-time").textContent = duration(a.loop_milliseconds);
      const times = a.loop_milliseconds / a.one_step_milliseconds;
      $("generate-difference").replaceChildren(
        "The two pictures differ by at most ", make("strong", { textContent: number(a.difference) }), " in a pixel, where black is 0 and white is 1",
        times > 1.5 ? `; the one step is ${number(times, 2)} times as fast.` : ".",
      );
      announce(`One step ${duration(a.one_step_milliseconds)}, a loop of ${asked} ${duration(a.loop_milliseconds)}, largest difference ${number(a.difference)}.`);
    });
  }

  async function choose(settings, model) {
    const facts = await studio.facts(model);
    if (model !== controls.model.value) return;
    $("generate-kind").textContent = facts.kind ?? "";
    const known = facts.solvers ?? Object.keys(SOLVERS);
    controls.solver.replaceChildren(...known.map((name) => make("option", { value: name, textContent: SOLVERS[name] ?? name })));
    const wanted = settings.get("solver") ?? USUAL.solver;
    controls.solver.value = known.includes(wanted) ? wanted : known[0];
    const amounts = (settings.get("directions") ?? "").split(",");
    sliders = [];
    $("generate-directions").replaceChildren(...Array.from({ length: facts.directions ?? 0 }, (_, i) => {
      const id = `generate-direction-${i}`;
      const slider = make("input", { type: "range", id, min: -3, max: 3, step: 0.1 });
      slider.value = within(amounts[i] ?? null, -3, 3, 0);
      slider.addEventListener("input", () => { draw(); studio.changed(); });
      sliders.push(slider);
      const sigma = facts.singular_values?.[i];
      return make("div", { class: "direction" },
        make("label", { for: id }, "v", make("sub", { textContent: i + 1 }), make("span", { class: "quiet", textContent: sigma === undefined ? "" : `σ = ${number(sigma)}` })),
        slider, make("output", { id: `${id}-value`, for: id }));
    }));
  }

  async function open(settings) {
    const model = studio.offer(controls.model, ["flow"], settings.get("model"), job, "mnist-flow");
    if (!model) return;
    job.drop();
    check.drop();
    controls.seed.value = Math.round(within(settings.get("seed"), 0, 2147483647, USUAL.seed));
    controls.n.value = [4, 16, 36, 64].includes(Number(settings.get("n"))) ? settings.get("n") : USUAL.n;
    controls.steps.value = 100 * Math.log10(within(settings.get("steps"), 1, 1000, USUAL.steps));
    controls.temperature.value = within(settings.get("temperature"), 0, 1.5, USUAL.temperature);
    if (!grid.children.length) grid.append(...Array.from({ length: 16 }, () => make("div", { class: "blank" })));
    write();
    try {
      await choose(settings, model);
    } catch (problem) {
      if (problem.status !== 401 && model === controls.model.value) job.fail(problem.message);
      return;
    }
    if (model !== controls.model.value) return;
    draw();
    measure();
  }

  controls.model.addEventListener("change", () => {
    const kept = new URLSearchParams(settings());
    kept.delete("directions");
    studio.changed(true);
    open(kept).then(() => studio.changed());
  });
  for (const name of ["n", "solver", "seed"]) {
    controls[name].addEventListener("change", () => { draw(); measure(); studio.changed(true); });
  }
  controls.steps.addEventListener("input", () => { draw(); measure(); studio.changed(); });
  controls.temperature.addEventListener("input", () => { draw(); studio.changed(); });
  $("generate-dice").addEventListener("click", () => {
    controls.seed.value = dice();
    draw();
    measure();
    studio.changed(true);
  });
  $("generate-reset").addEventListener("click", () => {
    for (const s of sliders) s.value = 0;
    draw();
    studio.changed(true);
  });
  return { open, settings };
}

// f((1−s) f†(a) ⊕ s f†(b)) beside (1−s) a + s b. Frames are fetched once; dragging is local.

const LAST = 32;

export function interpolate(studio) {
  const stage = $("interpolate").querySelector(".stage");
  const model = $("interpolate-model"), slider = $("interpolate-s");
  const job = new Job(stage, stage, model);
  const strips = [$("interpolate-strip"), $("interpolate-strip-fade")];
  let frames = null;

  const moved = (push, done) => {
    draw();
    if (done) studio.changed(push);
  };
  const slots = Object.fromEntries(["a", "b"].map((name) => [name, new Source(studio, $(`interpolate-${name}`), { changed: moved, fail: (text) => job.fail(text), seed: name === "a" ? 2 : 5 })]));

  const settings = () => ({ model: model.value, a: slots.a.text(), b: slots.b.text(), s: Number(slider.value) === LAST / 2 ? "" : number(slider.value / LAST, 4) });

  /** The frame at the slider: nothing is asked. */
  function place() {
    const i = Number(slider.value), s = number(i / LAST, 2);
    paint(slider, s);
    if (!frames) return;
    show($("interpolate-geodesic"), frames.images[i], `Geodesic at s = ${s}`);
    show($("interpolate-fade"), frames.crossfade[i], `Cross-fade at s = ${s}`);
    const near = Math.round((8 * i) / LAST);
    for (const strip of strips) [...strip.children].forEach((img, j) => img.classList.toggle("now", j === near));
  }

  const samples = new Map();
  /** The image of a slot, sampled first if it has a seed. */
  async function image(slot) {
    if (slot.kind !== "sample") return slot.image();
    const key = `${model.value} ${slot.seed.value}`;
    if (!samples.has(key)) {
      samples.set(key, (await ask("generate", { model: model.value, seed: Number(slot.seed.value), n: 1, steps: 100 })).images[0]);
      if (samples.size > 100) samples.delete(samples.keys().next().value);
    }
    return samples.get(key);
  }

  let wanted = 0;
  async function draw() {
    const mine = ++wanted;
    let a, b;
    try {
      [a, b] = await Promise.all([image(slots.a), image(slots.b)]);
    } catch (problem) {
      if (problem.status !== 401) job.fail(problem.message);
      return;
    }
    if (mine !== wanted) return;
    for (const [slot, picture] of [[slots.a, a], [slots.b, b]]) {
      if (picture) slot.show(picture);
      slot.note.textContent ||= picture ? "" : slot.kind === "draw" ? "Draw something." : "";
    }
    if (!a || !b) return;
    job.ask("interpolate", () => ({ model: model.value, a, b, frames: LAST + 1 }), async (answer) => {
      frames = answer;
      strips.forEach((strip, k) => {
        const images = k ? answer.crossfade : answer.images;
        strip.replaceChildren(...Array.from({ length: 9 }, (_, j) => {
          const img = make("img", { alt: "", src: images[Math.round((j * LAST) / 8)] });
          crisp(img, studio.entry(model.value).shape);
          return img;
        }));
      });
      place();
      announce("Both are encoded; drag between them.");
      for (const [slot, picture] of [[slots.a, a], [slots.b, b]]) {
        const { psnr } = await ask("encode", { model: model.value, image: picture });
        if (mine !== wanted) return;
        slot.note.textContent = psnr === null ? "f(f†(x)) is x to the last bit" : `f(f†(x)) is x to ${number(psnr)} dB`;
      }
    });
  }

  async function open(given) {
    if (!studio.offer(model, ["flow"], given.get("model"), job, "mnist-flow")) return;
    job.drop();
    const { shape } = studio.entry(model.value);
    for (const name of ["a", "b"]) {
      slots[name].fit(shape);
      slots[name].read(given.get(name) ?? "");
    }
    for (const id of ["interpolate-geodesic", "interpolate-fade"]) crisp($(id), shape);
    slider.value = Math.round(LAST * within(given.get("s"), 0, 1, 0.5));
    place();
    await draw();
  }

  slider.addEventListener("input", () => { place(); studio.changed(); });
  slider.addEventListener("change", () => announce(`s = ${number(slider.value / LAST, 2)}`));
  model.addEventListener("change", () => {
    studio.changed(true);
    frames = null;
    open(new URLSearchParams(settings()));
  });
  return { open, settings };
}
