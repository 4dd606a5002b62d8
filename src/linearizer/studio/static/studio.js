// The studio: tabs, the address, the theme, the token. Pages are modules of the applications.
import { $, address, announce, ask, make, query, useToken } from "./kit.js";

/** The pages, as the server lists them: {script, tabs}. */
const PAGES = JSON.parse($("page-list").textContent);

const facts = new Map();
let replacing;

/** What the tabs share. */
const studio = {
  models: [],
  limits: {},

  /** What the server knows about a model, asked once. */
  facts(id) {
    if (!facts.has(id)) {
      const answer = ask(`model?model=${encodeURIComponent(id)}`);
      facts.set(id, answer);
      answer.catch(() => facts.delete(id));
    }
    return facts.get(id);
  },

  entry: (id) => studio.models.find((m) => m.id === id),

  /** A model of this kind whose images have this shape. */
  like: (app, shape) => studio.models.find((m) => m.app === app && !m.problem && String(m.shape) === String(shape)),

  /** List the models of some apps in a select; the one that is chosen, or null if there is none. */
  offer(select, apps, wanted, job, usual) {
    const fitting = studio.models.filter((m) => !apps || apps.includes(m.app));
    const good = fitting.filter((m) => !m.problem);
    const option = (m) => make("option", { value: m.id, disabled: Boolean(m.problem), textContent: m.problem ? `${m.id}: ${m.problem}` : m.id });
    const kinds = [...new Set(fitting.map((m) => m.app))];
    if (kinds.length < 2) select.replaceChildren(...fitting.map(option));
    else select.replaceChildren(...kinds.map((kind) => make("optgroup", { label: kind }, ...fitting.filter((m) => m.app === kind).map(option))));
    select.disabled = !good.length;
    if (!good.length) {
      job.fail(`There is no model of this kind yet. Train one: linearizer ${apps ? `train ${apps[0]}` : "quickstart"}`);
      return null;
    }
    const chosen = good.find((m) => m.id === wanted) ?? good.find((m) => m.id === usual) ?? good[0];
    if (wanted && chosen.id !== wanted) job.fail(`There is no model ${wanted} here. Showing ${chosen.id} instead.`);
    select.value = chosen.id;
    return select.value;
  },

  /** Put the settings of the open tab into the address: as a new entry, or in place while dragging. */
  changed(push = false) {
    clearTimeout(replacing);
    const write = () => {
      queries[current] = query(tabs[current].settings());
      const text = `#${current}${queries[current]}`;
      if (text === location.hash) return;
      history[push ? "pushState" : "replaceState"](null, "", text);
    };
    if (push) write();
    else replacing = setTimeout(write, 150);
  },
};

const tabs = {};
for (const { script, tabs: ids } of PAGES) {
  try {
    const page = await import(script);
    for (const id of ids) tabs[id] = (page[id] ?? page.page)(studio, id);
  } catch (problem) {
    console.error(`${script} does not work:`, problem); // the other pages do without it
    for (const id of ids) {
      delete tabs[id];
      for (const each of [`tab-${id}`, id]) $(each)?.remove();
    }
  }
}
const names = Object.keys(tabs);
const queries = {};
const opened = {};
let current = "";

async function activate(name, text, push) {
  if (push) {
    studio.flush?.();
    history.pushState(null, "", `#${name}${text}`);
  }
  const before = current;
  if (before && before !== name) tabs[before].leave?.();
  current = name;
  for (const each of names) {
    const chosen = each === name;
    $(`tab-${each}`).setAttribute("aria-selected", String(chosen));
    $(`tab-${each}`).tabIndex = chosen ? 0 : -1;
    $(each).hidden = !chosen;
  }
  const title = $(`tab-${name}`).firstChild.textContent;
  document.title = `${title} · Linearizer studio`;
  if (opened[name] && queries[name] === text) return;
  opened[name] = true;
  queries[name] = text;
  await tabs[name].open(new URLSearchParams(text.slice(1)));
}

/** Write what is pending now, so that it belongs to the tab that is being left. */
studio.flush = () => {
  if (!current || !opened[current]) return;
  clearTimeout(replacing);
  queries[current] = query(tabs[current].settings());
  history.replaceState(null, "", `#${current}${queries[current]}`);
};

function follow() {
  clearTimeout(replacing);
  const { tab, text } = address();
  activate(names.includes(tab) ? tab : names[0], names.includes(tab) ? text : "", false);
}

for (const name of names) {
  $(`tab-${name}`).addEventListener("click", () => {
    if (name !== current) activate(name, queries[name] ?? "", true);
  });
  $(name).querySelector("form.controls").addEventListener("submit", (event) => event.preventDefault());
}
$("tabs").addEventListener("keydown", (event) => {
  const at = names.indexOf(current);
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: names.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const name = names[(to + names.length) % names.length];
  $(`tab-${name}`).focus();
  activate(name, queries[name] ?? "", true);
});
const wide = matchMedia("(min-width: 1100px)");
const turn = () => $("tabs").setAttribute("aria-orientation", wide.matches ? "vertical" : "horizontal");
wide.addEventListener("change", turn);
turn();
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part after # in the address is ours
  $("main").focus();
});

// ── theme ──────────────────────────────────────────────────────────────────────────────────────

const THEMES = ["auto", "light", "dark"];
const WORDS = { auto: "as the system", light: "light", dark: "dark" };
function wear(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-label", `Colours: ${WORDS[theme]}`);
  $("theme").title = `Colours: ${WORDS[theme]}`;
}
wear(document.documentElement.dataset.theme ?? "auto");
$("theme").addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % THEMES.length];
  wear(theme);
  announce(`Colours: ${WORDS[theme]}`);
  try {
    localStorage.setItem("linearizer-theme", theme);
  } catch {
    // Storage may be switched off: the choice then lasts as long as the page.
  }
});

// ── start ──────────────────────────────────────────────────────────────────────────────────────

const given = new URLSearchParams(location.search).get("token");
if (given) {
  useToken(given);
  history.replaceState(null, "", location.pathname + location.hash);
}
let tried = Boolean(given);
addEventListener("token-needed", () => {
  $("gate").hidden = false;
  for (const name of names) $(name).hidden = true;
  $("gate-problem").hidden = !tried;
  $("gate-problem").textContent = "The server does not know this token.";
  $("gate-token").focus();
});
$("gate-form").addEventListener("submit", (event) => {
  event.preventDefault();
  tried = true;
  useToken($("gate-token").value.trim());
  start();
});

async function start() {
  $("outage").hidden = true;
  try {
    const answer = await ask("models");
    studio.models = answer.models;
    studio.limits = answer.limits;
    $("version").textContent = `version ${answer.version}`;
  } catch (problem) {
    if (problem.status === 401) return;
    $("outage").replaceChildren(`${problem.message} `, make("button", { type: "button", class: "small", textContent: "Try again", onclick: start }));
    $("outage").hidden = false;
    return;
  }
  $("gate").hidden = true;
  for (const name of names) opened[name] = false;
  follow();
  document.documentElement.dataset.ready = "";
}

addEventListener("popstate", follow);
start();
