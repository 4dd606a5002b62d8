// f((1−s) f†(a) ⊕ s f†(b)) beside (1−s) a + s b. Frames are fetched once; dragging is local.
import { $, Job, announce, ask, crisp, make, number, paint, show, within } from "./kit.js";
import { Source } from "./source.js";

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
