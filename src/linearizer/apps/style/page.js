// A = Σ wᵢAᵢ on a photo, and f† to undo it.
import { $, Job, announce, ask, droppable, duration, make, number, paint, readPicture, show, within } from "../../kit.js";

export function style(studio) {
  const stage = $("style").querySelector(".stage");
  const model = $("style-model"), strength = $("style-strength"), size = $("style-size"), undo = $("style-undo"), cut = $("style-cut");
  const job = new Job(stage, stage, model);
  /** The model whose styles are listed. */
  let known = null;
  let names = [], undone = Infinity, sliders = [], photo = "", title = "", uploaded = false;

  /** Weights as shares of one: moving all sliders alike changes nothing. */
  function mix() {
    const weights = sliders.map((s) => Number(s.value)), sum = weights.reduce((a, b) => a + b, 0);
    return Object.fromEntries(names.map((name, i) => [name, sum ? weights[i] / sum : 0]).filter(([, w]) => w > 0));
  }

  /** f† takes a matrix for each frequency, so the server undoes smaller pictures only. */
  const most = () => (undo.checked ? undone : Infinity);

  const settings = () => ({
    model: model.value,
    mix: known !== model.value ? "" : sliders.map((s, i) => [names[i], Number(s.value)]).filter(([, w]) => w).map(([name, w]) => `${name}:${w}`).join(",") || (sliders.length ? "none" : ""),
    strength: strength.value === "1" ? "" : strength.value, size: size.value === "256" ? "" : size.value,
    undo: undo.checked ? 1 : "", cut: cut.value === "50" ? "" : cut.value,
  });

  function write() {
    const shares = mix(), terms = Object.entries(shares).map(([name, w]) => `${w === 1 ? "" : `${number(w, 2)} `}${name}`);
    $("style-operator").textContent = terms.length ? `A = ${terms.join(" + ")}` : "A is the photo’s own operator: raise a slider.";
    paint(strength, number(Number(strength.value)));
    sliders.forEach((s) => paint(s, number(Number(s.value))));
    $("style-compare").style.setProperty("--cut", `${cut.value}%`);
    cut.setAttribute("aria-valuetext", `${cut.value}% photo`);
    $("style-right").textContent = undo.checked ? "f†(f(x)), undone" : terms.length ? "f(x)" : "the photo";
    $("style-photo").textContent = uploaded ? `${title}. It is not part of a link.` : `${title ? `${title}. ` : ""}Photos may also be dropped on the picture.`;
  }

  function draw() {
    write();
    if (!photo || known !== model.value) return;
    job.ask("stylize", () => {
      const shares = mix(), none = !Object.keys(shares).length;
      // Strength 0 is the photo's own operator, whatever the mixture.
      return { model: model.value, image: photo, mix: none ? { [names[0]]: 1 } : shares, strength: none ? 0 : Number(strength.value), size: Math.min(Number(size.value), most()), undo: undo.checked };
    }, (a) => {
      show($("style-before"), a.photo, "The photo");
      show($("style-after"), undo.checked && a.undone ? a.undone : a.image, undo.checked ? "The photo, after the style was undone" : `The photo in ${$("style-operator").textContent}`);
      $("style-compare").querySelector(".blank").hidden = true;
      const told = undo.checked && a.undone
        ? `Undone from the floats of f(x): ${a.undone_psnr === null ? "the photo to the last bit" : `the photo to ${number(a.undone_psnr)} dB`}, ${duration(a.milliseconds)}.`
        : `f(x) took ${duration(a.milliseconds)}.`;
      const shrunk = Number(size.value) > most() ? ` Undo works up to ${most()} pixels, so both are shown at that size.` : "";
      $("style-result").textContent = told + shrunk;
      announce(told + shrunk);
    });
  }

  async function example() {
    const answer = await ask("photo", {});
    [photo, title, uploaded] = [answer.image, answer.title, false];
  }

  async function take(file) {
    try {
      photo = await readPicture(file, studio.limits, 1024);
    } catch (problem) {
      job.fail(problem.message);
      return;
    }
    [title, uploaded] = [file.name, true];
    draw();
  }

  async function open(given) {
    if (!studio.offer(model, ["style"], given.get("model"), job)) return;
    job.drop();
    const chosen = model.value;
    known = null;
    try {
      const facts = await studio.facts(chosen);
      if (chosen !== model.value) return;
      [names, undone] = [facts.styles, facts.undone_side];
    } catch (problem) {
      if (problem.status !== 401 && chosen === model.value) job.fail(problem.message);
      return;
    }
    known = chosen;
    const weights = Object.fromEntries((given.get("mix") || `${names[0]}:1`).split(",").map((term) => term.split(":")));
    sliders = names.map((name, i) => {
      const slider = make("input", { type: "range", id: `style-weight-${i}`, min: 0, max: 1, step: 0.01 });
      slider.value = within(weights[name] ?? null, 0, 1, 0);
      slider.addEventListener("input", () => { draw(); studio.changed(); });
      return slider;
    });
    $("style-mix").replaceChildren(...names.map((name, i) => make("div", { class: "slider" },
      make("label", { for: `style-weight-${i}`, textContent: name.replaceAll("_", " ") }), make("output", { id: `style-weight-${i}-value`, for: `style-weight-${i}` }), sliders[i])));
    strength.value = within(given.get("strength"), 0, 2, 1);
    size.value = [...size.options].some((o) => o.value === given.get("size")) ? given.get("size") : "256";
    undo.checked = given.get("undo") === "1";
    cut.value = within(given.get("cut"), 0, 100, 50);
    write();
    try {
      if (!photo) await example();
    } catch (problem) {
      if (problem.status !== 401) job.fail(problem.message);
    }
    draw();
  }

  strength.addEventListener("input", () => { draw(); studio.changed(); });
  for (const control of [size, undo]) control.addEventListener("change", () => { draw(); studio.changed(true); });
  cut.addEventListener("input", () => { write(); studio.changed(); });
  model.addEventListener("change", () => {
    studio.changed(true);
    open(new URLSearchParams({ ...settings(), mix: "" })).then(() => studio.changed());
  });
  $("style-example").addEventListener("click", async () => {
    try {
      await example();
    } catch (problem) {
      job.fail(problem.message);
      return;
    }
    draw();
  });
  $("style-file").addEventListener("change", (event) => event.target.files[0] && take(event.target.files[0]));
  droppable($("style-compare"), take);
  return { open, settings };
}
