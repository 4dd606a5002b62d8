// Any application without a page of its own: a point x, f(x), and f†(f(x)).
import { $, Job, announce, crisp, make, number, seedOf, within } from "./kit.js";
import { node, path, plot, redrawn } from "./plot.js";

/** Numbers in their order, as a line. */
function line(host, values, label) {
  const finite = values.filter((v) => v !== null), lo = Math.min(0, ...finite), hi = Math.max(0, ...finite);
  const room = 0.1 * (hi - lo || 1);
  const p = plot(host, { across: { from: 0.5, to: values.length + 0.5, name: "i" }, up: { from: lo - room, to: hi + room, name: "" }, height: 200, label: `${label}: ${finite.length} numbers from ${number(lo)} to ${number(hi)}` });
  p.marks.append(node("path", { class: "line c0", d: path(values.map((v, i) => [p.x(i + 1), p.y(v ?? 0)])) }));
}

export function page(studio, id) {
  const stage = $(id).querySelector(".stage");
  const model = $(`${id}-model`), seed = $(`${id}-seed`);
  const job = new Job(stage, stage, model);
  const settings = () => ({ model: model.value, seed: Number(seed.value) || "" });

  function show(name, label, picture, values) {
    const before = $(`${id}-${name}`).firstElementChild;
    if (picture) {
      const img = make("img", { class: "picture", src: picture, alt: label });
      img.onload = () => crisp(img, [img.naturalWidth]);
      return before.replaceWith(img);
    }
    const host = make("div", { class: "plot" });
    before.replaceWith(host);
    redrawn(host, () => line(host, values, label));
  }

  function draw() {
    job.ask(() => `apply?model=${encodeURIComponent(model.value)}&seed=${seedOf(seed)}`, undefined, (a) => {
      for (const [name, label] of [["x", "x"], ["y", "f(x)"], ["back", "f†(f(x))"]]) show(name, label, a.pictures[name], a.values[name]);
      $(`${id}-again`).textContent = number(a.again);
      announce(`f(f†(f(x))) differs from f(x) by at most ${number(a.again)}.`);
    });
  }

  function open(given) {
    if (!studio.offer(model, [id], given.get("model"), job)) return;
    seed.value = Math.round(within(given.get("seed"), 0, 2147483647, 0));
    draw();
  }

  for (const control of [model, seed]) control.addEventListener("change", () => { draw(); studio.changed(true); });
  return { open, settings };
}
