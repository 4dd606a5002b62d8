// Plots as SVG with axes and their names; colours come from the style sheet.

const SPACE = "http://www.w3.org/2000/svg";

export function node(tag, given = {}, ...children) {
  const made = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Round numbers between lo and hi. */
export function ticks(lo, hi, count = 5) {
  const raw = (hi - lo) / count;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * unit >= raw) * unit;
  const found = [];
  for (let v = Math.ceil(lo / step) * step; v <= hi + 1e-9 * step; v += step) found.push(Math.abs(v) < 1e-9 * step ? 0 : v);
  return found;
}

const written = (v) => String(Number(v.toPrecision(6))).replace("-", "−");
const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const power = (v) => "10" + [...String(v)].map((c) => (c === "-" ? "⁻" : RAISED[c])).join("");

/** The height of a plot that is not the only thing to see. */
export const tall = () => Math.round(Math.min(330, Math.max(240, 0.33 * innerHeight)));

let plots = 0;

/**
 * An empty plot in a host, as wide as it is.
 *
 * across, up: {from, to, name, log}; logarithmic axes take exponents of ten as from and to.
 * Returns {x, y: data → pixels, back: pixels → data, add(node), marks: what is cut at the frame}.
 */
export function plot(host, { across, up, height, label, square = false }) {
  const width = Math.max(220, host.clientWidth || 320);
  const left = 52, right = 12, top = 10, bottom = 42;
  if (square) {
    // One unit is as long on both axes: show more on one of them.
    const [w, h] = [width - left - right, height - top - bottom];
    const unit = Math.max((across.to - across.from) / w, (up.to - up.from) / h);
    const grown = (axis, length) => {
      const middle = (axis.from + axis.to) / 2;
      return { ...axis, from: middle - (unit * length) / 2, to: middle + (unit * length) / 2 };
    };
    [across, up] = [grown(across, w), grown(up, h)];
  }
  const clip = `plot-${++plots}`;
  const inner = { width: width - left - right, height: height - top - bottom };
  const of = (axis, v) => (axis.log ? Math.log10(v) : v);
  const x = (v) => left + ((of(across, v) - across.from) / (across.to - across.from)) * inner.width;
  const y = (v) => top + inner.height - ((of(up, v) - up.from) / (up.to - up.from)) * inner.height;
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  svg.append(node("defs", {}, node("clipPath", { id: clip }, node("rect", { x: left, y: top, ...inner }))));
  const marksOf = (axis, count) => {
    if (!axis.log) return (axis.ticks ?? ticks(axis.from, axis.to, count)).map((v) => [v, written(v)]);
    const step = Math.max(1, Math.ceil((axis.to - axis.from) / count));
    const found = [];
    for (let e = Math.ceil(axis.from); e <= axis.to; e += step) found.push([10 ** e, power(e)]);
    return found.length > 1 ? found : ticks(10 ** axis.from, 10 ** axis.to, 4).filter((v) => v > 0).map((v) => [v, written(v)]);
  };
  for (const [v, text] of marksOf(across, Math.max(3, Math.floor(inner.width / 70)))) {
    svg.append(node("line", { class: "grid-line", x1: x(v), x2: x(v), y1: top, y2: top + inner.height }));
    svg.append(node("text", { x: x(v), y: top + inner.height + 16, "text-anchor": "middle" }, text));
  }
  for (const [v, text] of marksOf(up, Math.max(3, Math.floor(inner.height / 45)))) {
    svg.append(node("line", { class: "grid-line", x1: left, x2: left + inner.width, y1: y(v), y2: y(v) }));
    svg.append(node("text", { x: left - 7, y: y(v) + 4, "text-anchor": "end" }, text));
  }
  svg.append(node("rect", { class: "frame-line", x: left, y: top, ...inner }));
  svg.append(node("text", { class: "axis", x: left + inner.width / 2, y: height - 5, "text-anchor": "middle" }, across.name));
  svg.append(node("text", { class: "axis", transform: `translate(14 ${top + inner.height / 2}) rotate(-90)`, "text-anchor": "middle" }, up.name));
  const marks = node("g", { "clip-path": `url(#${clip})` });
  svg.append(marks);
  host.replaceChildren(svg);
  return {
    svg, marks, x, y, width, height,
    axes: { across, up },
    back(event) {
      const box = svg.getBoundingClientRect();
      const px = ((event.clientX - box.left) / box.width) * width, py = ((event.clientY - box.top) / box.height) * height;
      return [
        across.from + ((px - left) / inner.width) * (across.to - across.from),
        up.from + ((top + inner.height - py) / inner.height) * (up.to - up.from),
      ];
    },
  };
}

/** The d of a path through points in pixels; what is not a number interrupts it. */
export function path(points) {
  let text = "", drawing = false;
  for (const [px, py] of points) {
    if (px === null || py === null || !Number.isFinite(px) || !Number.isFinite(py)) {
      drawing = false;
      continue;
    }
    const near = (v) => Math.min(1e5, Math.max(-1e5, v)).toFixed(1);
    text += `${drawing ? "L" : "M"}${near(px)} ${near(py)}`;
    drawing = true;
  }
  return text;
}

/** Draw again when the host gets another width. */
export function redrawn(host, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (!host.clientWidth || host.clientWidth === width) return;
    width = host.clientWidth;
    draw();
  }).observe(host);
}

/** Points of the complex plane with the axes through 0, and the unit circle where it matters. */
export function complexPlane(host, { points, circle = false, label, height = tall() }) {
  const reach = Math.max(circle ? 1.1 : 0, 1e-6, ...points.map((p) => 1.25 * Math.max(Math.abs(p.re), Math.abs(p.im))));
  const p = plot(host, {
    across: { from: -reach, to: reach, name: "Re λ" }, up: { from: -reach, to: reach, name: "Im λ" },
    square: true, label, height,
  });
  p.marks.append(node("line", { class: "axis-line", x1: p.x(p.axes.across.from), x2: p.x(p.axes.across.to), y1: p.y(0), y2: p.y(0) }));
  p.marks.append(node("line", { class: "axis-line", x1: p.x(0), x2: p.x(0), y1: p.y(p.axes.up.from), y2: p.y(p.axes.up.to) }));
  if (circle) p.marks.append(node("circle", { class: "axis-line", fill: "none", cx: p.x(0), cy: p.y(0), r: p.x(1) - p.x(0) }));
  for (const each of points) {
    const dot = node("circle", { class: `dot ${each.className ?? ""}`, cx: p.x(each.re), cy: p.y(each.im), r: each.r ?? 5 });
    if (each.title) dot.append(node("title", {}, each.title));
    p.marks.append(dot);
  }
  return p;
}
