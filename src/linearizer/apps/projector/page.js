// f(f(x)) = f(x): draw, and see the projection while the pen moves.
import { $, Job, announce, ask, crisp, droppable, duration, make, number, paint, readPicture, show } from "../../kit.js";
import { Pad } from "../../pad.js";

/** What the share of held-out data with a higher score means, in words. */
function verdict(usual) {
  const share = usual >= 0.995 ? "nearly all" : usual < 0.001 ? "none" : usual < 0.01 ? "less than 1%" : `${Math.round(100 * usual)}%`;
  const told = `${share} of the held-out data score${usual < 0.001 ? "s" : ""} as high`;
  if (usual > 0.5) return ["As usual as can be", told];
  if (usual > 0.1) return ["Usual", told];
  if (usual > 0.01) return ["Rare", `only ${told}`];
  return ["Strange", usual < 0.001 ? "no held-out image scores as high" : `only ${told}`];
}

export function project(studio) {
  const stage = $("project").querySelector(".stage");
  const model = $("project-model"), rank = $("project-rank");
  const job = new Job(stage, stage, model);
  /** Counts what is put on the canvas, and the model whose ranks are known. */
  let latest = 0, known = null;
  let ranks = [null], usual = null, base = "", moved = 0;

  const pad = new Pad($("project-pad"), "Drawing", (done) => {
    if (pad.empty) base = "";
    draw();
    if (done) studio.changed();
  });

  $("project-tools").append(pad.tools);

  const settings = () => ({ model: model.value, rank: ranks[rank.value] === usual ? "" : ranks[rank.value], base: base || (pad.text() ? "" : "none"), draw: pad.text() });

  function write() {
    paint(rank, ranks[rank.value] === null ? "all" : number(ranks[rank.value]));
    $("project-base").textContent = base === "upload"
      ? "You can draw on top of your image. It is not part of a link."
      : base ? `A sample of seed ${base.slice(7)}. You can draw on top of it.` : "You can draw on top of either. Images may also be dropped on the canvas.";
  }

  function draw() {
    write();
    if (known !== model.value) return;
    const asked = ++moved;
    job.ask("project", () => ({ model: model.value, image: pad.image(), rank: ranks[rank.value] === usual ? null : ranks[rank.value] }), (a) => {
      show($("project-once"), a.image, "The projection of the drawing");
      show($("project-twice"), a.again, "The projection of the projection: the same picture");
      $("project-difference").textContent = number(a.difference);
      $("project-time").textContent = `Both projections took ${duration(a.milliseconds)}.`;
      const gauge = $("project-gauge");
      gauge.classList.toggle("unknown", a.usual === null);
      const strong = make("strong"), rest = document.createTextNode("");
      if (a.usual === null) {
        strong.textContent = `Score ${number(a.score)}`;
        rest.textContent = ", the norm of what f takes away. At this rank there is nothing to compare it with.";
      } else {
        const [word, told] = verdict(a.usual);
        // Half of the scale for what half of the data reach, and the rest by tenths.
        const at = a.usual > 0.1 ? ((1 - a.usual) / 0.9) * 50 : 50 + 50 * Math.min(1, -Math.log10(Math.max(a.usual, 1e-3) / 0.1) / 2);
        $("project-needle").style.setProperty("--at", `${Math.min(99, Math.max(1, at))}%`);
        strong.textContent = word;
        rest.textContent = `: score ${number(a.score)}, and ${told}.`;
      }
      $("project-verdict").replaceChildren(strong, rest);
      if (asked === moved) announce(`${$("project-verdict").textContent} Applying f again changes at most ${number(a.difference)}.`);
    });
  }

  /** Put a sample below the drawing; false if something else was asked for meanwhile. */
  async function sample(seed) {
    const mine = ++latest;
    const flow = studio.like("flow", studio.entry(model.value).shape);
    const { images } = await ask("generate", { model: flow.id, seed, n: 1, steps: 100 });
    if (mine !== latest) return false;
    await pad.rest(images[0]);
    if (mine !== latest) return false;
    base = `sample:${seed}`;
    return true;
  }

  async function take(file) {
    const mine = ++latest;
    try {
      const picture = await cut(await readPicture(file, studio.limits, 512));
      if (mine !== latest) return;
      pad.strokes = [];
      await pad.rest(picture);
      if (mine !== latest) return;
    } catch (problem) {
      job.fail(problem.message);
      return;
    }
    base = "upload";
    draw();
    studio.changed(true);
  }

  /** The middle square of a picture, in the shape of the canvas. */
  async function cut(text) {
    const img = make("img", { src: text });
    await img.decode();
    const side = Math.min(img.naturalWidth, img.naturalHeight);
    const canvas = make("canvas", { width: pad.canvas.width, height: pad.canvas.height });
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.drawImage(img, (img.naturalWidth - side) / 2, (img.naturalHeight - side) / 2, side, side, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/png");
  }

  async function open(given) {
    if (!studio.offer(model, ["projector"], given.get("model"), job)) return;
    job.drop();
    const chosen = model.value, mine = ++latest;
    known = null;
    const { shape } = studio.entry(chosen);
    pad.fit(shape);
    for (const id of ["project-once", "project-twice"]) crisp($(id), shape);
    $("project-example").hidden = !studio.like("flow", shape);
    let seed = Number((given.get("base") ?? "").split(":")[1]);
    if (!given.has("base") && !given.has("draw") && studio.like("flow", shape)) seed = 3;
    try {
      const facts = await studio.facts(chosen);
      if (chosen !== model.value) return;
      known = chosen;
      usual = facts.rank;
      ranks = [...new Set([...(facts.ranks ?? []), facts.rank])].filter((r) => r !== null).sort((a, b) => a - b);
      if (!ranks.length) ranks = [null];
      rank.max = ranks.length - 1;
      rank.disabled = ranks.length < 2;
      const wanted = given.has("rank") ? Number(given.get("rank")) : usual;
      rank.value = Math.max(0, ranks.indexOf(ranks.includes(wanted) ? wanted : usual));
      // Unless a picture was taken while the server was asked.
      if (mine === latest) {
        pad.read(given.get("draw") ?? "");
        if (Number.isFinite(seed) && studio.like("flow", shape)) await sample(seed);
        else if (base !== "upload" || given.get("base") !== "upload") {
          base = "";
          await pad.rest(null);
        }
      }
    } catch (problem) {
      if (problem.status !== 401 && chosen === model.value) job.fail(problem.message);
      return;
    }
    draw();
  }

  rank.addEventListener("input", () => { draw(); studio.changed(); });
  model.addEventListener("change", () => {
    studio.changed(true);
    open(new URLSearchParams(settings()));
  });
  $("project-example").addEventListener("click", async () => {
    pad.strokes = [];
    const seed = base.startsWith("sample:") ? Number(base.slice(7)) + 1 : 0;
    try {
      if (!(await sample(seed))) return;
    } catch (problem) {
      job.fail(problem.message);
      return;
    }
    draw();
    studio.changed(true);
  });
  $("project-file").addEventListener("change", (event) => event.target.files[0] && take(event.target.files[0]));
  droppable(pad.canvas, take);
  return { open, settings };
}
