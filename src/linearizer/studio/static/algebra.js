// A = UΣVᵀ of any model, its laws measured, its singular vectors as pictures.
import { $, Job, announce, make, number, paint, within } from "./kit.js";
import { complexPlane, node, path, plot, redrawn, tall } from "./plot.js";

export function algebra(studio) {
  const stage = $("algebra").querySelector(".stage");
  const laws = $("algebra-laws").querySelector("tbody");
  const model = $("algebra-model"), k = $("algebra-k"), n = $("algebra-n");
  const job = new Job(stage, stage, model), checks = new Job(stage, $("algebra-laws").closest(".card"), model);
  const fail = checks.fail.bind(checks);
  checks.fail = (text) => {
    $("algebra-worst").textContent = "Not measured.";
    fail(text);
  };
  let spectrum = null;

  const settings = () => ({ model: model.value, k: k.value === "6" ? "" : k.value, n: n.value === "8" ? "" : n.value });

  function drawValues() {
    if (!spectrum) return;
    const values = spectrum.singular_values, positive = values.filter((v) => v > 0);
    if (!values.length) return $("algebra-values").replaceChildren();
    const most = Math.max(...values), least = Math.min(...positive);
    // A logarithm where the values span decades; exact zeros have no place on it.
    const log = positive.length === values.length && most > 30 * least;
    const up = log ? { from: Math.log10(least) - 0.15, to: Math.log10(most) + 0.15, name: "σᵢ", log } : { from: 0, to: 1.1 * most || 1, name: "σᵢ" };
    const p = plot($("algebra-values"), { across: { from: 0.3, to: values.length + 0.7, name: "i", ticks: values.length < 13 ? values.map((_, i) => i + 1) : undefined }, up, height: tall(), label: `${values.length} singular values, from ${number(most)} to ${number(values.at(-1))}` });
    if (values.length > 60) {
      p.marks.append(node("path", { class: "line c0", d: path(values.map((v, i) => [p.x(i + 1), p.y(v)])) }));
      return p;
    }
    values.forEach((v, i) => {
      const bottom = log ? 10 ** up.from : 0;
      p.marks.append(node("line", { class: "stem", x1: p.x(i + 1), x2: p.x(i + 1), y1: p.y(bottom), y2: p.y(v) }));
      const dot = node("circle", { class: "dot", cx: p.x(i + 1), cy: p.y(v), r: values.length > 30 ? 3.5 : 4.5 });
      dot.append(node("title", {}, `σ${i + 1} = ${number(v)}`));
      p.marks.append(dot);
    });
    return p;
  }

  function drawPlane() {
    const values = spectrum?.eigenvalues;
    $("algebra-plane-card").hidden = !values?.length;
    if (!values?.length) return;
    complexPlane($("algebra-plane"), { points: values.map(([re, im]) => ({ re, im, r: values.length > 40 ? 3 : 5, title: `${number(re)} ${im < 0 ? "−" : "+"} ${number(Math.abs(im))} i` })), circle: true, label: `${values.length} eigenvalue${values.length > 1 ? "s" : ""} of f and the unit circle` });
  }

  function drawVectors() {
    const { shape = [] } = studio.entry(model.value), sides = ["source", "target"];
    const shown = spectrum.vectors.filter((v) => sides.some((side) => v[side]));
    $("algebra-vectors-card").hidden = !shown.length;
    $("algebra-vectors").replaceChildren(...shown.map((v) => {
      const i = spectrum.vectors.indexOf(v) + 1;
      const pictures = sides.filter((side) => v[side]).map((side) => make("img", { class: shape.at(-1) <= 40 ? "pixels" : "", src: v[side], alt: `${side === "source" ? "Input" : "Output"} singular vector ${i}, from minus to plus` }));
      return make("figure", {}, make("figcaption", {}, make("strong", { textContent: String(i) }), make("br"), `σ = ${number(v.value)}`), make("div", { class: "pictures" }, ...pictures));
    }));
  }

  function facts(of) {
    const entry = studio.entry(model.value);
    const rows = [["kind", entry.app], ["data", entry.data], ["shape", entry.shape?.join(" × ")], ["parameters", of && number(of.parameters)], ["dimensions", of && number(of.dim)],
      ["rank of A", spectrum && number(spectrum.rank ?? of?.rank)], ["condition σ₁/σₙ", spectrum && number(spectrum.condition)], entry.metric && entry.metric.value !== null && [entry.metric.name, number(entry.metric.value)]];
    $("algebra-facts").replaceChildren(...rows.filter((row) => row?.[1]).flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
  }

  function ask() {
    paint(k, k.value);
    const chosen = model.value;
    job.ask(() => `spectrum?model=${encodeURIComponent(chosen)}&k=${k.value}`, undefined, async (answer) => {
      spectrum = answer;
      drawValues();
      drawPlane();
      drawVectors();
      facts(null);
      announce(`${answer.singular_values.length} singular values, the largest ${number(answer.singular_values[0])}.`);
      const of = await studio.facts(chosen);
      if (chosen === model.value) facts(of);
    });
  }

  function shown(law) {
    if (law.verdict === "not measured") return `not measured: ${law.note}`;
    const text = law.error === null ? law.note || "–" : number(law.error);
    return law.verdict === "failed" ? `fails: ${text}` : text;
  }

  function certify(wait) {
    paint(n, n.value);
    $("algebra-worst").textContent = "Measuring …";
    checks.later(wait, () => `certify?model=${encodeURIComponent(model.value)}&n=${n.value}`, undefined, (a) => {
      laws.replaceChildren(...a.laws.map((law) => make("tr", {}, make("td", { textContent: law.law }), make("td", { class: "formula", textContent: law.formula }),
        make("td", { class: law.verdict === "failed" ? "number fails" : "number", textContent: shown(law) }),
        make("td", { class: "number", textContent: law.tolerance === null ? "–" : number(law.tolerance) }))));
      const count = a.complete ? `All ${a.laws.length} laws are measured` : `${a.measured} of ${a.laws.length} laws are measured`;
      const kept = Object.entries(a.digits).map(([name, d]) => `g of ${name} keeps about ${d.toFixed(1)} digits`).join(", ");
      $("algebra-worst").replaceChildren(`${count}, on ${a.points} points in ${a.dtype}, relative to the size of what each compares; the largest error is `, make("strong", { textContent: number(a.worst) }), `. Around these points ${kept}. The tolerance is what rounding can do.`);
      announce(`${count}, the largest error is ${number(a.worst)}.`);
    });
  }

  async function open(given) {
    if (!studio.offer(model, null, given.get("model"), job, "mnist-flow")) return;
    k.value = within(given.get("k"), 1, 12, 6);
    n.value = within(given.get("n"), 3, 32, 8);
    spectrum = null;
    laws.replaceChildren();
    for (const id of ["algebra-values", "algebra-plane"]) $(id).replaceChildren(make("div", { class: "blank tall" }));
    $("algebra-vectors").replaceChildren(make("div", { class: "blank tall" }));
    facts(null);
    ask();
    certify(0);
  }

  model.addEventListener("change", () => {
    studio.changed(true);
    open(new URLSearchParams(settings()));
  });
  k.addEventListener("input", () => { ask(); studio.changed(); });
  n.addEventListener("input", () => { certify(400); studio.changed(); });
  redrawn($("algebra-values"), drawValues);
  redrawn($("algebra-plane"), drawPlane);
  return { open, settings };
}
