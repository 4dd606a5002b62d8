// x ⊕ s ⊙ f†(y ⊖ f(x)): the nearest image with the scores that one asks for.
import { $, Job, announce, crisp, make, number, paint, show, signed, within } from "../../kit.js";
import { Source } from "../../source.js";

const plain = (name) => name.replaceAll("_", " ");

export function edit(studio) {
  const stage = $("edit").querySelector(".stage");
  const model = $("edit-model"), strength = $("edit-strength"), table = $("edit-scores").querySelector("tbody");
  const job = new Job(stage, stage, model);
  /** The model whose names are listed. */
  let known = null;
  let names = [], classes = false, wishes = new Map(), chips = new Map(), sliders = new Map();

  const source = new Source(studio, $("edit-source"), {
    changed(push, done) { draw(); if (done) studio.changed(push); }, fail: (text) => job.fail(text), seed: 4, preview: false,
  });

  /** "Eyeglasses, -Smiling, Young=2.5" */
  const wish = () => [...wishes].map(([name, w]) => (w === "+" ? name : w === "-" ? `-${name}` : `${name}=${w}`)).join(", ");
  const settings = () => ({ model: model.value, image: source.text(), wish: known === model.value ? wish() : "", strength: strength.value === "1" ? "" : strength.value });

  function write() {
    paint(strength, number(Number(strength.value)));
    for (const [name, chip] of chips) {
      const w = wishes.get(name), state = w === undefined ? "" : typeof w === "number" ? "=" : w;
      chip.dataset.wish = state;
      chip.textContent = (state === "+" && !classes ? "+ " : state === "-" ? "− " : "") + plain(name);
      chip.setAttribute("aria-label", `${plain(name)}: ${{ "": "left as it is", "+": "with", "-": "without", "=": `score ${number(w)}` }[state]}`);
    }
    $("edit-caption").textContent = wishes.size ? [...wishes].map(([name, w]) => (w === "+" ? (classes ? `as a ${plain(name)}` : `with ${plain(name)}`) : w === "-" ? `without ${plain(name)}` : `${plain(name)} = ${number(w)}`)).join(", ") : "as it is";
  }

  /** A slider of the wanted score for each attribute that was chosen. */
  function rows() {
    sliders = new Map();
    if (classes) return $("edit-wishes").replaceChildren();
    const made = [...wishes].map(([name, w], i) => {
      const id = `edit-wish-${i}`;
      const slider = make("input", { type: "range", id, min: -10, max: 10, step: 0.1, value: typeof w === "number" ? w : 0 });
      slider.addEventListener("input", () => {
        wishes.set(name, Number(slider.value));
        paint(slider, signed(Number(slider.value)));
        draw();
        studio.changed();
      });
      sliders.set(name, slider);
      return make("div", { class: "slider" }, make("label", { for: id, textContent: `Score of ${plain(name)}` }), make("output", { id: `${id}-value`, for: id, textContent: typeof w === "number" ? signed(w) : "" }), slider);
    });
    $("edit-wishes").replaceChildren(...made);
    for (const [name, w] of wishes) if (typeof w === "number") paint(sliders.get(name), signed(w));
  }

  function draw() {
    write();
    if (known !== model.value) return;
    const image = source.image();
    if (source.kind !== "sample" && !image) {
      source.note.textContent ||= source.kind === "draw" ? "Draw something." : "";
      return;
    }
    job.ask("edit", () => ({ model: model.value, image: source.image(), seed: Number(source.seed.value), 
      // Nothing is asked for: the scores of x, by an edit of strength 0.
      wish: wish() || names[0], strength: wishes.size ? Number(strength.value) : 0 }), (a) => {
      show($("edit-before"), a.image, "The image");
      show($("edit-after"), a.edited, `The image, ${$("edit-caption").textContent}`);
      source.show(a.image);
      const order = Object.keys(a.scores).sort((p, q) => Number(wishes.has(q)) - Number(wishes.has(p)));
      table.replaceChildren(...order.map((name) => {
        const change = a.edited_scores[name] - a.scores[name];
        return make("tr", { class: wishes.has(name) ? "asked" : "" }, make("td", { textContent: plain(name) }),
          ...[number(a.scores[name], 2), number(a.edited_scores[name], 2), Math.abs(change) < 0.005 ? "0" : signed(Number(change.toFixed(2)))].map((text) => make("td", { class: "number", textContent: text })));
      }));
      for (const [name, slider] of sliders) {
        if (typeof wishes.get(name) === "number" || a.edited_scores[name] === undefined) continue;
        slider.value = a.edited_scores[name];
        paint(slider, signed(Number(a.edited_scores[name].toFixed(1))));
      }
      $("edit-result").textContent = (classes ? "The highest score names the class. " : "Above 0 the attribute holds. ")
        + (wishes.size && a.score_error !== null ? `The scores asked for are met to ${number(a.score_error)}.` : "");
      announce(`Edited image, ${$("edit-caption").textContent}.`);
    });
  }

  function press(name) {
    const w = wishes.get(name);
    if (classes) {
      const before = w;
      wishes.clear();
      if (before === undefined) wishes.set(name, "+");
    } else if (w === undefined) wishes.set(name, "+");
    else if (w === "+") wishes.set(name, "-");
    else wishes.delete(name);
    rows();
    draw();
    studio.changed(true);
  }

  function readWish(text) {
    const found = new Map();
    for (const word of (text || "").split(",").map((t) => t.trim()).filter(Boolean)) {
      const [name, score] = word.split("=");
      if (names.includes(word)) found.set(word, "+");
      else if (word.startsWith("-") && names.includes(word.slice(1))) found.set(word.slice(1), "-");
      else if (names.includes(name) && Number.isFinite(Number(score))) found.set(name, Number(score));
    }
    return found;
  }

  async function open(given) {
    if (!studio.offer(model, ["attributes"], given.get("model"), job, "celeba-attributes")) return;
    job.drop();
    const chosen = model.value;
    known = null;
    const { shape } = studio.entry(chosen);
    source.fit(shape);
    for (const id of ["edit-before", "edit-after"]) crisp($(id), shape);
    source.read(given.get("image") ?? "");
    strength.value = within(given.get("strength"), 0, 2, 1);
    try {
      const facts = await studio.facts(chosen);
      if (chosen !== model.value) return;
      names = facts.names;
      classes = facts.kind === "classes";
    } catch (problem) {
      if (problem.status !== 401 && chosen === model.value) job.fail(problem.message);
      return;
    }
    known = chosen;
    wishes = readWish(given.get("wish"));
    $("edit-legend").textContent = classes ? "Class" : "Attributes";
    $("edit-how").textContent = classes ? "Press one to ask for its usual scores." : "Press once for with, twice for without, again to leave it; then set the score itself.";
    chips = new Map(names.map((name) => [name, make("button", { type: "button", onclick: () => press(name) })]));
    $("edit-names").replaceChildren(...chips.values());
    rows();
    draw();
  }

  strength.addEventListener("input", () => { draw(); studio.changed(); });
  $("edit-clear").addEventListener("click", () => {
    wishes.clear();
    rows();
    draw();
    studio.changed(true);
  });
  model.addEventListener("change", () => {
    studio.changed(true);
    open(new URLSearchParams({ ...settings(), wish: "" })).then(() => studio.changed());
  });
  return { open, settings };
}
