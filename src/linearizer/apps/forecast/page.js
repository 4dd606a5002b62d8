// g_y⁻¹ A g_x: the last rows of a table, or an example, and the rows that follow.
import { $, DICE, Job, announce, dice, droppable, make, number, seedOf, within } from "../../kit.js";
import { node, path, plot, redrawn, tall } from "../../plot.js";

/** Longer tables are cut to their header and last rows before they are sent. */
const LONGEST = 900_000;

export function forecast(studio) {
  const stage = $("forecast").querySelector(".stage");
  const model = $("forecast-model"), column = $("forecast-column"), coverage = $("forecast-coverage");
  const seed = $("forecast-seed"), text = $("forecast-text"), file = $("forecast-file");
  const kinds = [...document.querySelectorAll("input[name=forecast-kind]")];
  const job = new Job(stage, stage, model);
  let config = null, shown = null;

  const kind = () => kinds.find((radio) => radio.checked).value;
  const settings = () => ({
    model: model.value, column: column.selectedIndex > 0 ? column.value : "",
    seed: Number(seed.value) || "", coverage: coverage.value === "0.9" ? "" : coverage.value,
    source: kind() === "table" ? "table" : "",
  });

  function turn(to) {
    for (const radio of kinds) radio.checked = radio.value === to;
    $("forecast-example").hidden = to !== "example";
    $("forecast-table").hidden = to !== "table";
    if (!config) return;
    const columns = config.columns.length > 6 ? `${config.columns.slice(0, 6).join(", ")} …` : config.columns.join(", ");
    $("forecast-needs").textContent = to === "table"
      ? `It needs a header and ${config.look_back} or more rows with the columns ${columns}.`
      : `${config.look_back} rows that the model draws: random coordinates through the inverse of g.`;
  }

  function cut(table) {
    if (table.length <= LONGEST) return table;
    const lines = table.trimEnd().split("\n");
    return [lines[0], ...lines.slice(1).slice(-config.look_back)].join("\n");
  }

  function ask() {
    const table = kind() === "table" ? cut(text.value.trim()) : "";
    if (!config || (kind() === "table" && !table)) return;
    job.ask("forecast", () => ({
      model: model.value, table, seed: seedOf(seed), column: column.value, coverage: Number(coverage.value),
    }), (answer) => {
      shown = answer;
      draw();
    });
  }

  function draw() {
    if (!shown) return;
    const { past, lower, middle, upper, times, before } = shown;
    const values = [...past, ...lower, ...middle, ...upper].filter((v) => v !== null);
    const lo = Math.min(...values), hi = Math.max(...values), room = 0.08 * (hi - lo) || 1;
    const p = plot($("forecast-plot"), {
      across: { from: 1 - past.length, to: middle.length, name: "rows after the last one" },
      up: { from: lo - room, to: hi + room, name: shown.column }, height: tall() + 60,
      label: `${shown.column}: ${past.length} rows of the past and ${middle.length} of the forecast with its interval`,
    });
    const points = (list, first) => list.map((v, i) => [p.x(first + i), v === null ? null : p.y(v)]);
    const last = past.length - 1;
    const band = [...points([past[last], ...upper], 0), ...points([past[last], ...lower], 0).reverse()];
    p.marks.append(node("path", { class: "band", d: `${path(band)}Z` }));
    p.marks.append(node("path", { class: "line c5", d: path(points(past, -last)) }));
    p.marks.append(node("path", { class: "line c0", d: path(points([past[last], ...middle], 0)) }));
    const end = middle.length - 1, percent = Math.round(100 * coverage.value);
    const at = (i) => (before.length ? times[i] : `row ${i + 1}`);
    const told = `${shown.column} at ${at(end)}: ${number(middle[end], 4)}, between ${number(lower[end], 4)} and ${number(upper[end], 4)} in ${percent}% of cases`;
    $("forecast-result").replaceChildren(make("strong", { textContent: `${told}. ` }), shown.notes.join(" "));
    announce(told);
  }

  async function open(given) {
    if (!studio.offer(model, ["forecast"], given.get("model"), job)) return;
    job.drop();
    const chosen = model.value;
    config = shown = null;
    let found;
    try {
      found = await studio.facts(chosen);
    } catch (problem) {
      if (problem.status !== 401 && chosen === model.value) job.fail(problem.message);
      return;
    }
    if (chosen !== model.value) return;
    config = found.config;
    column.replaceChildren(...config.columns.map((name) => make("option", { value: name, textContent: name })));
    if (config.columns.includes(given.get("column"))) column.value = given.get("column");
    seed.value = Math.round(within(given.get("seed"), 0, 2147483647, 0));
    coverage.value = [...coverage.options].some((o) => o.value === given.get("coverage")) ? given.get("coverage") : "0.9";
    turn(given.get("source") === "table" && text.value ? "table" : "example");
    ask();
  }

  async function take(chosen) {
    text.value = await chosen.text();
    turn("table");
    announce(`${chosen.name} is read.`);
    ask();
    studio.changed(true);
  }

  $("forecast-dice").innerHTML = DICE;
  $("forecast-dice").addEventListener("click", () => { seed.value = dice(); ask(); studio.changed(true); });
  file.addEventListener("change", () => file.files[0] && take(file.files[0]));
  droppable($("forecast-source"), take);
  for (const radio of kinds) radio.addEventListener("change", () => { turn(radio.value); ask(); studio.changed(true); });
  for (const control of [column, coverage, seed, text]) control.addEventListener("change", () => { ask(); studio.changed(true); });
  model.addEventListener("change", () => {
    open(new URLSearchParams({ model: model.value, source: kind() })).then(() => studio.changed(true));
  });
  redrawn($("forecast-plot"), draw);
  return { open, settings };
}
