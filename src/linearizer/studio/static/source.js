// Where an image comes from: a sample by its seed, a drawing, or a file.
import { DICE, announce, crisp, dice, droppable, make, readPicture, seedOf, show } from "./kit.js";
import { Pad } from "./pad.js";

const KINDS = { sample: "Sample", draw: "Draw", upload: "Upload" };

export class Source {
  /** changed(push) is called when the image is another one; fail(text) when a file is no image. */
  constructor(studio, field, { changed, fail, seed = 0, preview = true }) {
    Object.assign(this, { studio, field, changed, fail, kind: "sample", uploaded: "", usual: seed, preview });
    const id = field.id;
    this.segments = make("div", { class: "segments", role: "radiogroup", "aria-label": `Source of ${field.querySelector("legend").textContent}` },
      ...Object.entries(KINDS).map(([kind, text]) => make("label", {}, make("input", { type: "radio", name: `${id}-kind`, value: kind, checked: kind === "sample" }), make("span", { textContent: text }))));
    this.seed = make("input", { type: "number", id: `${id}-seed`, min: 0, max: 2147483647, step: 1, value: seed, inputMode: "numeric" });
    const roll = make("button", { type: "button", class: "icon", "aria-label": `Another seed for ${field.querySelector("legend").textContent}` });
    roll.innerHTML = DICE;
    this.seedRow = make("div", { class: "row" }, make("label", { for: `${id}-seed`, textContent: "Seed" }), this.seed, roll);
    this.shown = make("img", { class: "picture shown", alt: "", hidden: true });
    const padHost = make("div", { id: `${id}-pad`, hidden: true });
    this.padHost = padHost;
    this.pad = new Pad(padHost, `Drawing of ${field.querySelector("legend").textContent}`, (done) => this.changed(false, done));
    this.file = make("input", { type: "file", id: `${id}-file`, accept: "image/*", class: "visually-hidden" });
    this.zone = make("label", { class: "drop-zone", for: `${id}-file`, textContent: "Choose an image, or drop one here", hidden: true });
    this.note = make("p", { class: "hint" });
    field.append(this.segments, make("div", { class: "body" }, this.shown, this.seedRow, this.zone, padHost), this.file, this.note);

    this.segments.addEventListener("change", (event) => {
      this.#turn(event.target.value);
      this.changed(true, true);
    });
    this.seed.addEventListener("change", () => { seedOf(this.seed); this.changed(true, true); });
    roll.addEventListener("click", () => { this.seed.value = dice(); this.changed(true, true); });
    this.file.addEventListener("change", () => this.file.files[0] && this.take(this.file.files[0]));
    droppable(field, (file) => this.take(file));
    this.#turn("sample");
  }

  #turn(kind) {
    this.kind = kind;
    for (const radio of this.segments.querySelectorAll("input")) radio.checked = radio.value === kind;
    this.seedRow.hidden = kind !== "sample";
    this.padHost.hidden = kind !== "draw";
    this.zone.hidden = kind !== "upload";
    this.file.hidden = kind !== "upload";
    this.shown.hidden = kind === "draw" || (kind === "upload" && !this.uploaded) || !this.shown.src;
    this.note.textContent = "";
  }

  /** The shape of the model's images. */
  fit(shape) {
    this.pad.fit(shape);
    crisp(this.shown, shape);
    this.shape = shape;
  }

  async take(file) {
    try {
      this.uploaded = await readPicture(file, this.studio.limits, 512);
    } catch (problem) {
      this.fail(problem.message);
      return;
    }
    this.#turn("upload");
    this.name = file.name;
    announce(`${file.name} is uploaded.`);
    this.changed(true, true);
  }

  /** As it stands in the address; a file is not part of it. */
  text() {
    if (this.kind === "sample") return Number(this.seed.value) === this.usual ? "" : `sample:${this.seed.value}`;
    if (this.kind === "draw") return `draw:${this.pad.text()}`;
    return this.uploaded ? "upload:" : "";
  }

  read(text) {
    const [kind, rest = ""] = (text || `sample:${this.usual}`).split(":");
    if (kind === "upload" && this.uploaded) {
      this.#turn("upload");
    } else if (kind === "draw") {
      this.pad.read(rest);
      this.#turn("draw");
    } else {
      this.seed.value = Math.max(0, Math.round(Number(rest) || 0));
      this.#turn("sample");
      if (kind === "upload") this.note.textContent = "An uploaded image is not part of a link: upload it again.";
    }
  }

  /** The drawing or the upload as a data URL; null where there is none, or for a sample. */
  image() {
    if (this.kind === "draw") return this.pad.empty ? null : this.pad.image();
    return this.kind === "upload" ? this.uploaded || null : null;
  }

  /** Show what the model sees. */
  show(picture) {
    if (this.kind === "draw" || !this.preview) return;
    show(this.shown, picture, this.kind === "sample" ? `A sample of seed ${this.seed.value}` : `${this.name ?? "The uploaded image"}, as the model sees it`);
  }
}
