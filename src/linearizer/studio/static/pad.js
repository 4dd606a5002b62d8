// A canvas to draw on, white on black as MNIST, at ten times the model's pixels.
import { announce, make } from "./kit.js";

// Places on the canvas are whole numbers of 12 bits, so that a drawing in the address is the very
// drawing that was made: two characters for each. Of a long drawing it has fewer points.
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const FINE = 4095;
/** Longest drawing, in characters, that is put into the address. */
const LONGEST = 2400;
/** Width of a stroke, and a step of the arrow keys, where the pad is 32 wide. */
const PEN = 2.5, ERASER = 5, STEP = 1, LONG_STEP = 4;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const inside = (v) => Math.min(FINE, Math.max(0, Math.round(v)));

/** The ends of a stroke, and between them points that are so far apart. */
function thinned(points, apart) {
  const kept = [points[0]];
  for (const place of points.slice(1, -1)) if (Math.hypot(place[0] - kept.at(-1)[0], place[1] - kept.at(-1)[1]) >= apart) kept.push(place);
  return points.length > 1 ? [...kept, points.at(-1)] : kept;
}

/** Strokes as text, with as many points as there is room for; "" if even few are too many. */
export function encodeStrokes(strokes) {
  const pair = (v) => LETTERS[v >> 6] + LETTERS[v & 63];
  for (let apart = 0; apart < FINE / 8; apart = 1.25 * apart + FINE / 100) {
    const text = strokes.map((s) => (s.erase ? "~" : "") + thinned(s.points, apart).map(([x, y]) => pair(x) + pair(y)).join("")).join(".");
    if (text.length <= LONGEST) return text;
  }
  return "";
}

export function decodeStrokes(text) {
  const strokes = [];
  for (const part of text ? text.split(".") : []) {
    const erase = part.startsWith("~");
    const letters = [...part.slice(erase ? 1 : 0)].map((c) => LETTERS.indexOf(c));
    if (!letters.length || letters.length % 4 || letters.includes(-1)) continue;
    const points = [];
    for (let i = 0; i < letters.length; i += 4) points.push([letters[i] * 64 + letters[i + 1], letters[i + 2] * 64 + letters[i + 3]]);
    strokes.push({ erase, points });
  }
  return strokes;
}

export class Pad {
  /** changed(done) is called while the pen moves and, with true, when it was lifted. */
  constructor(host, label, changed) {
    this.changed = changed;
    this.strokes = [];
    this.base = null;
    this.erasing = false;
    /** Where the arrow keys are; an element over the canvas shows it, as it is not part of the drawing. */
    this.at = [inside(FINE / 2), inside(FINE / 2)];
    this.cursor = make("span", { class: "cursor", "aria-hidden": "true" });
    const keys = make("p", { class: "hint keys", id: `${host.id}-keys`, textContent: "Arrow keys move, with Shift further; Space puts the pen down and up." });
    // An application, so that screen readers leave the arrow keys to it.
    this.canvas = make("canvas", { role: "application", "aria-label": label, "aria-roledescription": "drawing pad", "aria-describedby": keys.id, tabIndex: 0 });
    this.label = label;
    this.pen = this.canvas.getContext("2d", { willReadFrequently: true });
    const tool = (name, click, more = {}) => make("button", { type: "button", textContent: name, onclick: click, ...more });
    this.penButton = tool("Pen", () => this.#erase(false), { "aria-pressed": "true" });
    this.eraserButton = tool("Eraser", () => this.#erase(true), { "aria-pressed": "false" });
    const undo = tool("Undo", () => this.undo());
    const clear = tool("Clear", () => this.clear());
    host.classList.add("pad");
    this.tools = make("div", { class: "tools", role: "group", "aria-label": "Drawing tools" }, this.penButton, this.eraserButton, undo, clear);
    this.note = make("p", { class: "hint", role: "status", hidden: true, textContent: "This drawing has too many strokes to be part of a link." });
    host.append(make("div", { class: "paper" }, this.canvas, this.cursor), keys, this.tools, this.note);
    this.canvas.addEventListener("pointerdown", (event) => this.#down(event));
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, () => this.#up());
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.canvas.addEventListener("blur", () => this.#lift());
    this.fit([1, 32, 32]);
  }

  /** Take the shape (channels, height, width) of a model. */
  fit([channels, height, width]) {
    this.shape = [channels, height, width];
    this.scale = Math.max(2, Math.round(320 / Math.max(height, width)));
    this.canvas.width = width * this.scale;
    this.canvas.height = height * this.scale;
    this.canvas.style.aspectRatio = `${width} / ${height}`;
    this.canvas.classList.toggle("pixels", false);
    this.#draw();
  }

  get empty() {
    return !this.strokes.length && !this.base;
  }

  text() {
    return encodeStrokes(this.strokes);
  }

  read(text) {
    this.strokes = decodeStrokes(text);
    this.#draw();
  }

  /** Draw on top of a picture (a data URL), or of nothing. */
  async rest(picture) {
    this.base = null;
    if (picture) {
      const img = make("img", { src: picture });
      await img.decode();
      this.base = img;
    }
    this.#draw();
  }

  undo() {
    if (!this.strokes.length) return;
    this.strokes.pop();
    this.#draw();
    this.changed(true);
  }

  clear() {
    this.strokes = [];
    this.base = null;
    this.#draw();
    this.changed(true);
  }

  /** The drawing at the model's size, as a PNG: each pixel is the mean of its square. */
  image() {
    const [, height, width] = this.shape;
    const s = this.scale;
    const fine = this.pen.getImageData(0, 0, width * s, height * s).data;
    const small = new ImageData(width, height);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const at = 4 * (y * width + x);
        for (let c = 0; c < 3; c++) {
          let sum = 0;
          for (let j = 0; j < s; j++) {
            let from = 4 * ((y * s + j) * width * s + x * s) + c;
            for (let i = 0; i < s; i++, from += 4) sum += fine[from];
          }
          small.data[at + c] = sum / (s * s);
        }
        small.data[at + 3] = 255;
      }
    }
    const canvas = make("canvas", { width, height });
    canvas.getContext("2d").putImageData(small, 0, 0);
    return canvas.toDataURL("image/png");
  }

  #erase(erasing) {
    this.erasing = erasing;
    this.penButton.setAttribute("aria-pressed", String(!erasing));
    this.eraserButton.setAttribute("aria-pressed", String(erasing));
    this.#point();
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    const at = (v, from, length) => inside(((v - from) / length) * FINE);
    return [at(event.clientX, box.left, box.width), at(event.clientY, box.top, box.height)];
  }

  #down(event) {
    if (event.button > 0) return;
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.#begin(this.#place(event));
  }

  #move(event) {
    if (!this.stroke) return;
    const events = event.getCoalescedEvents?.() ?? [];
    this.#reach((events.length ? events : [event]).map((each) => this.#place(each)));
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const arrow = ARROWS[event.key];
    if (arrow) {
      const step = ((event.shiftKey ? LONG_STEP : STEP) / 32) * FINE;
      this.at = this.at.map((v, i) => inside(v + step * arrow[i]));
      if (this.stroke) this.#reach([this.at]);
      this.#point();
    } else if (event.key === "Escape") {
      this.#lift();
    } else if (event.key === " " || event.key === "Enter") {
      if (!event.repeat) this.stroke ? this.#lift() : this.#lower();
    } else {
      return;
    }
    event.preventDefault();
  }

  #lower() {
    announce("Pen down", 0);
    this.#begin(this.at);
  }

  #lift() {
    if (!this.stroke) return;
    announce("Pen up", 0);
    this.#up();
  }

  #begin(place) {
    this.at = place;
    this.stroke = { erase: this.erasing, points: [place] };
    this.strokes.push(this.stroke);
    this.#draw();
    this.changed(false);
  }

  #reach(places) {
    let grown = false;
    for (const place of places) {
      const last = this.stroke.points.at(-1);
      // Half a pixel of the model is as fine as a stroke needs to be.
      if (Math.hypot(place[0] - last[0], place[1] - last[1]) * this.shape[2] < 0.5 * FINE) continue;
      this.stroke.points.push(place);
      this.at = place;
      grown = true;
    }
    if (!grown) return;
    this.#draw();
    this.changed(false);
  }

  #up() {
    if (!this.stroke) return;
    this.stroke = null;
    this.#draw();
    this.changed(true);
  }

  /** Show the cursor where it is, as wide as its stroke would be. */
  #point() {
    this.cursor.style.left = `${(100 * this.at[0]) / FINE}%`;
    this.cursor.style.top = `${(100 * this.at[1]) / FINE}%`;
    this.cursor.style.width = `${(100 * (this.erasing ? ERASER : PEN)) / 32}%`;
    this.cursor.classList.toggle("down", Boolean(this.stroke));
  }

  #draw() {
    const { pen, canvas, scale } = this;
    if (!this.strokes.includes(this.stroke)) this.stroke = null; // undone, or another drawing
    this.#point();
    pen.globalCompositeOperation = "source-over";
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    if (this.base) {
      pen.imageSmoothingEnabled = this.base.naturalWidth > this.shape[2];
      pen.drawImage(this.base, 0, 0, canvas.width, canvas.height);
    }
    pen.lineCap = pen.lineJoin = "round";
    const far = ([x, y]) => [(x / FINE) * canvas.width, (y / FINE) * canvas.height];
    const wide = (this.shape[2] / 32) * scale;
    for (const { erase, points } of this.strokes) {
      pen.strokeStyle = erase ? "#000" : "#fff";
      pen.lineWidth = (erase ? ERASER : PEN) * wide;
      pen.beginPath();
      const [first, ...rest] = points.map(far);
      pen.moveTo(...first);
      let last = first;
      for (const place of rest) {
        pen.quadraticCurveTo(...last, (last[0] + place[0]) / 2, (last[1] + place[1]) / 2);
        last = place;
      }
      // A line of no length is not drawn, but a dot is to be.
      pen.lineTo(last[0] + (rest.length ? 0 : 0.01), last[1]);
      pen.stroke();
    }
    const count = this.strokes.length;
    if (!this.stroke) this.note.hidden = !count || this.text() !== "";
    this.canvas.setAttribute("aria-label", `${this.label}: ${count ? `${count} stroke${count > 1 ? "s" : ""}` : this.base ? "a picture" : "empty"}`);
  }
}
