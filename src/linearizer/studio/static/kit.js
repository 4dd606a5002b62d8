// What every tab uses: elements, numbers in words, requests, and jobs that never pile up.

export const $ = (id) => document.getElementById(id);

/** An element with properties, attributes (names with a dash, role, for, class) and children. */
export function make(tag, given = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.includes("-") || ["role", "for", "class"].includes(name)) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

// ── numbers ────────────────────────────────────────────────────────────────────────────────────

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** 0.00000024 as 2.4 × 10⁻⁷, and 3.14159 as 3.14. */
export function number(x, digits = 3) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e-3 && (size < 1e5 || (Number.isInteger(x) && size < 1e12))) {
    const text = size >= 1000 ? Math.round(x).toLocaleString("en-GB") : String(Number(x.toPrecision(digits)));
    return text.replace("-", "−");
  }
  const [mantissa, exponent] = x.toExponential(1).split("e");
  const power = [...String(Math.abs(Number(exponent)))].map((d) => RAISED[d]).join("");
  return `${mantissa} × 10${exponent.startsWith("-") ? "⁻" : ""}${power}`.replace("-", "−");
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return `${number(ms, 2)} ms`;
  if (ms < 1000) return `${number(ms, ms < 10 ? 2 : 3)} ms`;
  return `${number(ms / 1000)} s`;
}

export const signed = (x) => (x > 0 ? `+${number(x)}` : number(x));

// ── the address ────────────────────────────────────────────────────────────────────────────────

/** The tab and the settings in the address: #project?model=mnist-projector&rank=8 */
export function address() {
  const [tab, ...rest] = location.hash.slice(1).split("?");
  return { tab, text: rest.length ? `?${rest.join("?")}` : "" };
}

/** Settings as they stand in the address; what has its usual value is left out. */
export function query(settings) {
  const kept = Object.entries(settings).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return kept.length ? "?" + kept.map(([name, value]) => `${name}=${encodeURIComponent(value).replace(/%2C|%3A|%2F/g, decodeURIComponent)}`).join("&") : "";
}

/** A number of the settings within its bounds, or what is usual. */
export function within(text, lo, hi, usual) {
  const value = text === null || text === "" ? NaN : Number(text);
  return Number.isFinite(value) ? Math.min(hi, Math.max(lo, value)) : usual;
}

// ── for those who listen ───────────────────────────────────────────────────────────────────────

let speaking;

/** Say it once things are quiet, so that a drag is not read out frame by frame; 0 says it at once. */
export function announce(text, quiet = 700) {
  clearTimeout(speaking);
  speaking = setTimeout(() => ($("announcer").textContent = text), quiet);
}

// ── requests ───────────────────────────────────────────────────────────────────────────────────

const KEPT = "linearizer-token";
let token = "";
try {
  token = sessionStorage.getItem(KEPT) ?? "";
} catch {
  // Storage may be switched off: the token then lasts as long as the page.
}

export function useToken(text) {
  token = text;
  try {
    sessionStorage.setItem(KEPT, text);
  } catch {
    // as above
  }
}

export class Refusal extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** JSON of the API: a POST if there is a body. A busy server is asked once more, then named so. */
export async function ask(path, body, again = true) {
  let answer;
  try {
    answer = await fetch(`api/${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...(token ? { Authorization: `Bearer ${token}` } : {}) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refusal("The server does not answer. Is “linearizer serve” still running?");
  }
  if (answer.ok) return answer.json();
  if ((answer.status === 429 || answer.status === 503) && again) {
    await pause(1000 * Math.min(5, Number(answer.headers.get("Retry-After")) || 1));
    return ask(path, body, false);
  }
  let said = `The server answered ${answer.status}.`;
  try {
    said = (await answer.json()).error || said;
  } catch {
    // not from our server, or cut short: its status is all we know
  }
  if (answer.status === 401) dispatchEvent(new CustomEvent("token-needed"));
  if (answer.status === 429 || answer.status === 503) said = `Asked twice, and the server is still busy. ${said}`;
  throw new Refusal(said, answer.status);
}

/**
 * Requests for one region of the page. At most one is under way; of those that come meanwhile only
 * the latest is sent, with the settings of that moment. What comes for a model that is no longer
 * the chosen one is not shown. Jobs of one stage say what went wrong in lines of their own.
 */
export class Job {
  constructor(stage, region = stage, model = null) {
    this.region = region;
    this.model = model;
    this.problem = stage.querySelector(".problem");
    this.line = this.problem.appendChild(make("span"));
    this.next = null;
    this.busy = false;
  }

  /** body() makes the body when the request is sent; apply(answer) shows what came. */
  ask(path, body, apply) {
    this.next = { path, body, apply };
    if (!this.busy) this.#work();
  }

  /** As ask, once nothing has been asked for a while. */
  later(ms, path, body, apply) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(path, body, apply), ms);
  }

  drop() {
    clearTimeout(this.timer);
    this.next = null;
  }

  /** Say what went wrong; "" once it is well again. */
  fail(text) {
    this.line.textContent = text;
    this.problem.hidden = !this.problem.textContent;
  }

  async #work() {
    this.busy = true;
    const slow = setTimeout(() => {
      this.region.classList.add("slow");
      this.region.setAttribute("aria-busy", "true");
    }, 300);
    while (this.next) {
      const { path, body, apply } = this.next;
      this.next = null;
      const chosen = this.model?.value;
      const stale = () => this.model?.value !== chosen;
      try {
        const answer = await ask(typeof path === "function" ? path() : path, body?.());
        if (stale()) continue;
        await apply(answer);
        this.line.textContent = "";
        this.problem.hidden = !this.problem.textContent;
      } catch (problem) {
        if (!(problem instanceof Refusal)) console.error(problem);
        if (!this.next && problem.status !== 401 && !stale()) this.fail(problem.message);
      }
    }
    clearTimeout(slow);
    this.region.classList.remove("slow");
    this.region.removeAttribute("aria-busy");
    this.busy = false;
  }
}

// ── controls and pictures ──────────────────────────────────────────────────────────────────────

/** Colour the track of a slider up to its thumb, and write its value. */
export function paint(slider, text) {
  const share = (v) => 100 * ((v - slider.min) / (slider.max - slider.min || 1));
  // From 0 where there are numbers below it, and else from the left.
  const ends = [slider.min < 0 ? share(0) : 0, share(slider.value)].sort((a, b) => a - b);
  slider.style.setProperty("--from", `${ends[0]}%`);
  slider.style.setProperty("--to", `${ends[1]}%`);
  const output = $(`${slider.id}-value`);
  if (output && text !== undefined) output.textContent = text;
  if (text !== undefined) slider.setAttribute("aria-valuetext", text);
}

/** Show a picture in place of the blank beside it. */
export function show(img, source, alt) {
  img.src = source;
  img.alt = alt;
  img.hidden = false;
  const blank = img.parentElement.querySelector(":scope > .blank");
  if (blank) blank.hidden = true;
}

/** Small images show their pixels; larger ones are smoothed. */
export const crisp = (node, shape) => node.classList.toggle("pixels", shape.at(-1) <= 40);

/** A whole number that may serve as a seed. */
export const dice = () => Math.floor(Math.random() * 1_000_000);

export function seedOf(input) {
  const value = Math.round(within(input.value, 0, 2147483647, 0));
  input.value = value;
  return value;
}

/** A picture file as a data URL that the server takes, its longer side at most so long. */
export async function readPicture(file, limits, side) {
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Refusal(`${file.name || "This"}: the browser cannot read it as an image. Take a PNG, JPEG or WebP.`);
  }
  const most = Math.min(side, limits.image_side ?? side);
  const factor = Math.min(1, most / Math.max(picture.width, picture.height));
  const canvas = make("canvas", { width: Math.max(1, Math.round(picture.width * factor)), height: Math.max(1, Math.round(picture.height * factor)) });
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  // What is transparent is white, as on the server; a JPEG would make it black.
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  const exact = Math.max(canvas.width, canvas.height) <= 128;
  const text = exact ? canvas.toDataURL("image/png") : canvas.toDataURL("image/jpeg", 0.95);
  if (text.length > 1.4 * (limits.upload_bytes ?? Infinity)) throw new Refusal(`${file.name}: it is larger than the server takes.`);
  return text;
}

/** Let a picture be dropped on a node. */
export function droppable(node, take) {
  for (const name of ["dragenter", "dragover"]) {
    node.addEventListener(name, (event) => {
      event.preventDefault();
      node.classList.add("drop");
    });
  }
  node.addEventListener("dragleave", () => node.classList.remove("drop"));
  node.addEventListener("drop", (event) => {
    event.preventDefault();
    node.classList.remove("drop");
    const file = event.dataTransfer.files[0];
    if (file) take(file);
  });
}

/** The picture on buttons that draw another seed. */
export const DICE = '<svg viewBox="0 0 24 24" aria-hidden="true"><rect x="4" y="4" width="16" height="16" rx="3.5"/><circle class="full" cx="8.7" cy="8.7" r="1.4"/><circle class="full" cx="15.3" cy="15.3" r="1.4"/><circle class="full" cx="15.3" cy="8.7" r="1.4"/><circle class="full" cx="8.7" cy="15.3" r="1.4"/></svg>';
