"use strict";
// The page that skdml.plot.explore writes. Its data are in the element #data, as JSON; `start`, at
// the end, reads them and builds one of three pages: rows, generated rows, or rankings.
//
// All texts of users go through `el`, as text and never as HTML.

// Okabe and Ito's colours, as in skdml.plot; the seventh is black on white, and white on black.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"];
const SHAPES = ["circle", "triangle", "square", "diamond", "down", "plus"];
const RAMP = ["#35456c", "#575d6d", "#7d7c78", "#a69d75", "#d3c164", "#fee838"]; // of cividis
const MISSING = 65535;
const MOST_BARS = 8; // parts of a distance, or of a score, that are shown
const MOST_FOUND = 20;
const REACH = 14; // pixels from the pointer to a point

const state = {
  selected: -1,
  compared: -1,
  hovered: -1,
  style: null, // what colours and shapes mean: see `makeStyle`
  only: -1, // a key of the legend: all other points are dimmed
  matches: null, // rows that were found by a search
  morph: 1,
  maps: [],
};
let page;

// ---------------------------------------------------------------------------------- reading

async function unpack(block) {
  const text = atob(block.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const types = { float32: Float32Array, int32: Int32Array, uint16: Uint16Array, uint8: Uint8Array };
  return new types[block.type](buffer);
}

// Replaces every packed array of a value by its numbers.
async function unpackAll(value) {
  for (const [key, part] of Object.entries(value)) {
    if (part === null || typeof part !== "object") continue;
    if (part.type && part.data) value[key] = await unpack(part);
    else if (!Array.isArray(part) || typeof part[0] === "object") await unpackAll(part);
  }
}

// ---------------------------------------------------------------------------------- elements

const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function say(text) {
  $("live").textContent = text;
}

function number(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const size = Math.abs(value);
  if (size >= 1e9 || size < 1e-3) return value.toExponential(2);
  return size >= 1e4 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
}

// Four digits, with zeros at the end, for columns of distances.
const distanceText = (value) => (value > 0 && value < 1e4 && value >= 1e-3 ? value.toPrecision(4) : number(value));

// A long name may be broken before a capital letter.
const breakable = (name) => name.replace(/([a-z])([A-Z])/g, "$1\u200b$2");

const percent = (share) => `${Math.round(100 * share)}%`;
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const swapBlack = (colour) => (colour === "#000000" && isDark() ? "#f2f2f2" : colour);

// ---------------------------------------------------------------------------------- rows

function nameOf(row) {
  if (page.mode === "ranking") return `row ${page.rows[row]}`;
  const part = page.parts.findLast((candidate) => candidate.start <= row);
  return `${part.name} ${row - part.start}`;
}

const hasClasses = () => Boolean(page.labels?.classes) && page.mode === "rows";
const codeOf = (row) => page.labels.codes[row];

function labelOf(row) {
  if (!page.labels) return "";
  if (page.labels.values) return `value ${number(page.labels.values[row])}`;
  const code = codeOf(row);
  if (page.mode === "generated") return "";
  return code < 0 ? "no class" : `class ${page.labels.classes[code]}`;
}

// null: one of the two has no class
function isRight(row, other) {
  if (!hasClasses() || codeOf(row) < 0 || codeOf(other) < 0) return null;
  return codeOf(row) === codeOf(other);
}

function cell(row, column) {
  const { kind, low, step, labels } = page.columns[column];
  const code = page.cells[row * page.columns.length + column];
  if (code === MISSING) return null;
  if (kind === "category") return labels[code];
  const value = low + step * code;
  return code && Math.abs(value) <= step / 2 ? 0 : value; // values are rounded to steps
}

function cellText(row, column) {
  const value = cell(row, column);
  if (value === null) return "missing";
  const { kind, step } = page.columns[column];
  if (kind === "category") return value;
  if (kind === "date") {
    const text = new Date(value).toISOString();
    return step > 3.6e6 ? text.slice(0, 10) : text.slice(0, 16).replace("T", " ");
  }
  return number(value);
}

function picture(row, size) {
  const { urls, pixels, height, width, channels } = page.images;
  if (urls) return el("img", { src: urls[row], alt: "", width: size, class: "picture" });
  const canvas = el("canvas", { width, height, class: "picture", "aria-hidden": "true" });
  canvas.style.width = `${size}px`;
  if (Math.max(width, height) < 64) canvas.style.imageRendering = "pixelated";
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  let from = row * height * width * channels;
  for (let i = 0; i < height * width; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = pixels[from + (channels === 3 ? c : 0)];
    image.data[4 * i + 3] = 255;
    from += channels;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// The columns that matter most come first, where the metric says which these are.
function columnOrder() {
  if (page.order) return page.order;
  const order = page.columns.map((_, j) => j);
  const metric = page.metrics?.[1];
  if (metric) {
    const d = order.length;
    const weight = (j) => (metric.diagonal ? metric.diagonal[j] : metric.matrix[j * d + j]);
    const size = order.map((j) => weight(j) * spread(j));
    order.sort((a, b) => size[b] - size[a]);
  } else if (page.added) {
    const size = order.map(weightInScores);
    order.sort((a, b) => size[b] - size[a]);
  }
  return (page.order = order);
}

// How much a column adds to scores, or takes from them, in all.
function weightInScores(column) {
  let sum = 0;
  for (let row = 0; row < page.n; row += Math.ceil(page.n / 2000)) {
    sum += Math.abs(page.added[row * page.reasons.length + column]);
  }
  return sum;
}

function spread(column) {
  let [n, sum, squares] = [0, 0, 0];
  for (let row = 0; row < page.n; row += Math.ceil(page.n / 2000)) {
    const value = cell(row, column);
    if (typeof value !== "number") continue;
    n += 1;
    sum += value;
    squares += value * value;
  }
  return n ? squares / n - (sum / n) ** 2 : 0;
}

function snippet(row, length) {
  if (page.texts) {
    const text = page.texts[row];
    return text.length > length ? `${text.slice(0, length - 1)}…` : text;
  }
  if (page.images || !page.columns) return "";
  const few = columnOrder().slice(0, 3);
  return few.map((j) => `${page.columns[j].name} = ${cellText(row, j)}`).join(", ");
}

function cellTable(row, columns) {
  const body = columns.map((j) =>
    el("tr", {}, el("th", { scope: "row" }, page.columns[j].name), el("td", {}, cellText(row, j))),
  );
  return el("table", { class: "cells" }, el("tbody", {}, ...body));
}

// ---------------------------------------------------------------------------------- neighbours

function neighbours(view, row) {
  return view.neighbors.subarray(row * page.k, (row + 1) * page.k);
}

function countRight(view, row) {
  return neighbours(view, row).reduce((sum, other) => sum + (isRight(row, other) ? 1 : 0), 0);
}

// The class that most neighbours have, the nearer one of two, and its share of them.
function vote(view) {
  if (view.votes) return view.votes;
  const winner = new Int32Array(page.n).fill(-1);
  const share = new Float32Array(page.n);
  const counts = new Int32Array(page.labels.classes.length);
  for (let row = 0; row < page.n; row++) {
    const found = neighbours(view, row);
    for (const other of found) if (codeOf(other) >= 0) counts[codeOf(other)] += 1;
    let best = -1;
    for (const other of found) {
      const code = codeOf(other);
      if (code >= 0 && (best < 0 || counts[code] > counts[best])) best = code;
    }
    winner[row] = best;
    share[row] = best < 0 ? 0 : counts[best] / found.length;
    for (const other of found) if (codeOf(other) >= 0) counts[codeOf(other)] = 0;
  }
  return (view.votes = { winner, share });
}

// What each column adds to the squared distance of two rows: d_j (M d)_j for their difference d.
function parts(metric, row, other) {
  const d = page.columns.length;
  const difference = page.columns.map((_, j) => cell(row, j) - cell(other, j));
  if (metric.diagonal) return difference.map((value, j) => value * value * metric.diagonal[j]);
  return difference.map((value, j) => {
    let sum = 0;
    for (let i = 0; i < d; i++) sum += metric.matrix[j * d + i] * difference[i];
    return value * sum;
  });
}

// ---------------------------------------------------------------------------------- colours

// A style gives each row a key; each key has a colour, a shape, and a line in the legend. A ramp
// has many keys, and a legend of its two ends.
function makeStyle(name) {
  if (name === "class" || name === "kind") {
    const { classes, codes } = page.labels;
    const keys = classes.map((text, i) => ({
      text,
      colour: COLOURS[i % COLOURS.length],
      shape: SHAPES[Math.floor(i / COLOURS.length) % SHAPES.length],
    }));
    if (!codes.includes(-1)) return { keys, key: codes };
    keys.push({ text: "no class", colour: "#8a8a8a", shape: "circle" });
    return { keys, key: codes.map((code) => (code < 0 ? classes.length : code)) };
  }
  if (name === "error") return errorStyle();
  if (name === "confidence") {
    return rampStyle(vote(page.views[1]).share, 0, 1, "share of neighbours that agree");
  }
  if (name === "change") {
    const kept = new Float32Array(page.n);
    for (let row = 0; row < page.n; row++) {
      const before = neighbours(page.views[0], row);
      for (const other of neighbours(page.views[1], row)) kept[row] += before.includes(other);
    }
    return rampStyle(kept.map((count) => 1 - count / page.k), 0, 1, "share of new neighbours");
  }
  if (name === "value") {
    const values = page.labels.values;
    return rampStyle(values, least(values), -least(values.map((v) => -v)), "value");
  }
  if (name.startsWith("column ")) return columnStyle(Number(name.slice(7)));
  return {
    keys: page.parts.map((part, i) => ({ text: `${part.name}s`, colour: COLOURS[i], shape: SHAPES[i] })),
    key: new Uint8Array(page.n).map((_, row) => page.parts.findLastIndex((p) => p.start <= row)),
  };
}

const least = (values) => values.reduce((low, value) => Math.min(low, value), Infinity);

function errorStyle() {
  const [first, second] = page.views.map((view) => vote(view).winner);
  const names = page.views.map((view) => view.name);
  const keys = [
    { text: "right under both", colour: COLOURS[0], shape: "circle" },
    { text: `right only under ${names[1]}`, colour: COLOURS[2], shape: "square" },
    { text: `right only under ${names[0]}`, colour: COLOURS[1], shape: "triangle" },
    { text: "wrong under both", colour: COLOURS[3], shape: "diamond" },
    { text: "no class", colour: "#8a8a8a", shape: "circle" },
  ];
  const key = new Uint8Array(page.n).map((_, row) => {
    const code = codeOf(row);
    if (code < 0) return 4;
    return (first[row] === code ? 0 : 1) + (second[row] === code ? 0 : 2);
  });
  // 0 both, 1 only the second, 2 only the first, 3 none
  return { keys: key.includes(4) ? keys : keys.slice(0, 4), key };
}

function rampStyle(values, low, high, text) {
  const keys = Array.from({ length: 32 }, (_, i) => {
    const at = (i / 31) * (RAMP.length - 1);
    const from = Math.min(Math.floor(at), RAMP.length - 2);
    return { text: "", colour: mix(RAMP[from], RAMP[from + 1], at - from), shape: "circle" };
  });
  const key = new Uint8Array(page.n).map((_, row) =>
    Math.round((31 * (values[row] - low)) / (high - low || 1)),
  );
  return { keys, key, ramp: [number(low), number(high), text] };
}

function columnStyle(column) {
  const { kind, labels, name } = page.columns[column];
  const values = Float64Array.from({ length: page.n }, (_, row) => {
    const code = page.cells[row * page.columns.length + column];
    return code === MISSING ? NaN : code;
  });
  if (kind === "category" && labels.length <= COLOURS.length * SHAPES.length - 1) {
    const keys = [...labels, "missing"].map((text, i) => ({
      text,
      colour: i === labels.length ? "#8a8a8a" : COLOURS[i % COLOURS.length],
      shape: SHAPES[Math.floor(i / COLOURS.length)],
    }));
    return { keys, key: new Uint8Array(values.map((v) => (Number.isNaN(v) ? labels.length : v))) };
  }
  const known = values.filter((value) => !Number.isNaN(value)).sort();
  const low = known[Math.floor(known.length / 100)] ?? 0;
  const high = known[Math.ceil((99 * known.length) / 100) - 1] ?? 1;
  const style = rampStyle(values.map((v) => Math.min(Math.max(v || 0, low), high)), low, high, name);
  const at = (code) => (kind === "number" ? number(page.columns[column].low + page.columns[column].step * code) : "");
  style.ramp = [at(low), at(high), name];
  return style;
}

const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

function mix(first, second, share) {
  const [a, b] = [channels(first), channels(second)];
  const mixed = a.map((value, i) => Math.round(value + share * (b[i] - value)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

// ---------------------------------------------------------------------------------- maps

const masks = new Map();

// How much of each pixel a shape covers, from 0 to 255.
function mask(shape, radius) {
  const name = `${shape} ${radius}`;
  if (masks.has(name)) return masks.get(name);
  const inside = {
    circle: (x, y) => x * x + y * y <= 1,
    square: (x, y) => Math.max(Math.abs(x), Math.abs(y)) <= 0.85,
    diamond: (x, y) => Math.abs(x) + Math.abs(y) <= 1.15,
    triangle: (x, y) => y <= 0.75 && y >= 1.9 * Math.abs(x) - 1.1,
    down: (x, y) => -y <= 0.75 && -y >= 1.9 * Math.abs(x) - 1.1,
    plus: (x, y) => Math.min(Math.abs(x), Math.abs(y)) <= 0.33 && Math.max(Math.abs(x), Math.abs(y)) <= 1,
  }[shape];
  const half = Math.ceil(radius * 1.2);
  const size = 2 * half + 1;
  const cover = new Uint8Array(size * size);
  for (let p = 0; p < cover.length; p++) {
    let hits = 0;
    for (let s = 0; s < 16; s++) {
      const x = (p % size) - half + (s % 4) / 4 - 0.375;
      const y = Math.floor(p / size) - half + Math.floor(s / 4) / 4 - 0.375;
      hits += inside(x / radius, y / radius) ? 1 : 0;
    }
    cover[p] = (hits * 255) / 16;
  }
  const made = { cover, half, size };
  masks.set(name, made);
  return made;
}

// One canvas with points: zoom, drag, hover, click and keys.
class PointMap {
  constructor(views, place) {
    this.views = views; // one, or two between which it morphs
    this.canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "map" });
    this.caption = el("figcaption");
    place.append(el("figure", { class: "map" }, this.caption, this.canvas));
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.pointers = new Map();
    this.reset();
    this.listen();
    this.setPoints();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  get view() {
    return this.views[this.views.length > 1 && state.morph >= 0.5 ? 1 : 0];
  }

  reset() {
    Object.assign(this, { zoom: 1, x: 0, y: 0 });
  }

  setPoints() {
    const [first, second] = this.views.map((view) => view.positions);
    const t = state.morph;
    this.points = second && t > 0 ? first.map((p, i) => p + t * (second[i] - p)) : first;
    this.grid = null;
    const share = this.view.variance;
    const name = this.views.length > 1 ? "between" : this.view.name;
    const whole = this.views.length === 1 || t === 0 || t === 1;
    this.caption.textContent = whole
      ? `${this.view.name}: ${percent(share)} of the variance is on these axes`
      : `between ${this.views[0].name} and ${this.views[1].name}`;
    this.canvas.setAttribute(
      "aria-label",
      `Map of ${page.n} rows, ${whole ? this.view.name : name}. Arrow keys go from row to row, ` +
        "Enter goes to its neighbours, Escape clears.",
    );
  }

  resize() {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    this.ratio = ratio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.draw(); // at once: the canvas is black until then
  }

  get scale() {
    return 0.46 * Math.min(this.canvas.width, this.canvas.height) * this.zoom;
  }

  // Where a row is on the canvas, in its pixels.
  at(row) {
    return [
      this.canvas.width / 2 + (this.points[2 * row] - this.x) * this.scale,
      this.canvas.height / 2 - (this.points[2 * row + 1] - this.y) * this.scale,
    ];
  }

  isShown(row) {
    const { shown } = this.view;
    return !shown || (row >= shown[0] && row < shown[1]);
  }

  radius() {
    const plain = page.n <= 600 ? 4.5 : page.n <= 5000 ? 3 : page.n <= 20000 ? 2.2 : 1.5;
    return Math.min(plain * this.zoom ** 0.35, 7) * this.ratio;
  }

  draw() {
    if (!this.pixels) return;
    const colours = getComputedStyle(document.documentElement);
    const colour = (name) => colours.getPropertyValue(name).trim();
    this.pixels.fill(pixel(channels(colour("--map"))));
    const { keys, key } = state.style;
    const radius = Math.round(this.radius() * 4) / 4;
    const alpha = page.n > 20000 ? 0.75 : page.n > 2000 ? 0.85 : 1;
    const [dim, back] = [channels(colour("--dim")), channels(colour("--map"))];
    const paints = keys.map((k) => channels(swapBlack(k.colour)));
    const stamps = keys.map((k) => mask(k.shape, radius));
    const halos = page.n <= 3000 ? keys.map((k) => mask(k.shape, radius + this.ratio)) : null;
    const isDim = (row) =>
      (state.matches && !state.matches.has(row)) || (state.only >= 0 && key[row] !== state.only);
    const filtered = Boolean(state.matches) || state.only >= 0;
    const stored = page.mode === "rows" && page.parts[1] ? page.parts[1].start : page.n;
    const { points, scale } = this;
    const [left, top] = [this.canvas.width / 2 - this.x * scale, this.canvas.height / 2 + this.y * scale];
    for (const pass of filtered ? [true, false] : [false]) {
      for (let i = 0; i < page.n; i++) {
        const row = page.drawn[i];
        if (!this.isShown(row) || (filtered && isDim(row) !== pass)) continue;
        const x = left + points[2 * row] * scale;
        const y = top - points[2 * row + 1] * scale;
        const k = key[row];
        if (halos && !pass) this.stamp(halos[k], x, y, back, 0.8);
        const fade = row >= stored ? 0.45 : 1; // stored rows are pale
        this.stamp(stamps[k], x, y, pass ? dim : paints[k], pass ? 0.5 : alpha * fade);
      }
    }
    this.context.putImageData(this.image, 0, 0);
    this.drawSelection(colour, radius);
  }

  // Mixes a colour into the pixels that a shape covers. It runs for each point of each frame, so it
  // makes no arrays.
  stamp(shape, x, y, colour, alpha) {
    const { cover, half, size } = shape;
    const { pixels } = this;
    const { width, height } = this.image;
    const left = Math.round(x) - half;
    const top = Math.round(y) - half;
    if (left < 0 || top < 0 || left + size > width || top + size > height) return;
    const red = colour[0];
    const green = colour[1];
    const blue = colour[2];
    const whole = (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
    let from = 0;
    for (let dy = 0; dy < size; dy++) {
      let to = (top + dy) * width + left;
      for (let dx = 0; dx < size; dx++, to++) {
        const share = (cover[from++] * alpha) / 255;
        if (share === 0) continue;
        if (share === 1) {
          pixels[to] = whole;
          continue;
        }
        const old = pixels[to];
        const r = old & 255;
        const g = (old >> 8) & 255;
        const b = (old >> 16) & 255;
        pixels[to] =
          0xff000000 |
          ((b + (blue - b) * share) << 16) |
          ((g + (green - g) * share) << 8) |
          (r + (red - r) * share);
      }
    }
  }

  drawSelection(colour, radius) {
    const { context: pen, ratio } = this;
    const ring = (row, size, width, ink) => {
      pen.beginPath();
      pen.arc(...this.at(row), size, 0, 2 * Math.PI);
      pen.lineWidth = width * ratio;
      pen.strokeStyle = ink;
      pen.stroke();
    };
    const ink = colour("--ink");
    const row = state.selected;
    if (row >= 0) {
      for (const other of neighbours(this.view, row)) {
        const wrong = isRight(row, other) === false;
        pen.beginPath();
        pen.moveTo(...this.at(row));
        pen.lineTo(...this.at(other));
        pen.setLineDash(wrong ? [5 * ratio, 4 * ratio] : []);
        pen.lineWidth = 1.2 * ratio;
        pen.strokeStyle = colour(wrong ? "--wrong" : "--right");
        pen.stroke();
        pen.setLineDash([]);
        ring(other, radius + 2 * ratio, 1.5, colour(wrong ? "--wrong" : "--right"));
      }
      ring(row, radius + 5 * ratio, 3, ink);
      if (state.compared >= 0 && this.isShown(state.compared)) ring(state.compared, radius + 4 * ratio, 2.5, ink);
    }
    if (state.hovered >= 0) ring(state.hovered, radius + 3 * ratio, 1.5, ink);
  }

  // The row nearest to a place on the canvas, within a number of pixels; -1: none.
  nearest(x, y, reach) {
    this.grid ??= makeGrid(this.points);
    const { scale, canvas, grid } = this;
    const [px, py] = [(x - canvas.width / 2) / scale + this.x, (canvas.height / 2 - y) / scale + this.y];
    const r = reach / scale;
    let best = -1;
    let least = r * r;
    for (let gx = grid.cell(px - r); gx <= grid.cell(px + r); gx++) {
      for (let gy = grid.cell(py - r); gy <= grid.cell(py + r); gy++) {
        const place = gy * grid.side + gx;
        for (let i = grid.starts[place]; i < grid.starts[place + 1]; i++) {
          const row = grid.rows[i];
          const size = (this.points[2 * row] - px) ** 2 + (this.points[2 * row + 1] - py) ** 2;
          if (size < least && this.isShown(row)) [best, least] = [row, size];
        }
      }
    }
    return best;
  }

  // The nearest row in a direction: within 45 degrees of it.
  beside(row, dx, dy) {
    const [x, y] = [this.points[2 * row], this.points[2 * row + 1]];
    let [best, least] = [-1, Infinity];
    for (let other = 0; other < page.n; other++) {
      const [ox, oy] = [this.points[2 * other] - x, this.points[2 * other + 1] - y];
      const along = ox * dx + oy * dy;
      const across = Math.abs(ox * dy) + Math.abs(oy * dx);
      if (along <= 0 || across > along || !this.isShown(other)) continue;
      const size = along * along + across * across;
      if (size < least) [best, least] = [other, size];
    }
    return best;
  }

  zoomBy(factor, x = this.canvas.width / 2, y = this.canvas.height / 2) {
    const [dx, dy] = [x - this.canvas.width / 2, this.canvas.height / 2 - y];
    const before = this.scale;
    this.zoom = Math.min(Math.max(this.zoom * factor, 0.2), 2000);
    this.x += dx / before - dx / this.scale;
    this.y += dy / before - dy / this.scale;
    draw();
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * this.ratio, (event.clientY - box.top) * this.ratio];
  }

  listen() {
    const { canvas, pointers } = this;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...this.place(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, this.place(event));
      if (pointers.size === 1) this.moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => {
      const last = pointers.size === 1;
      pointers.delete(event.pointerId);
      if (!last || this.moved > 5 * this.ratio) return;
      const row = this.nearest(...this.place(event), REACH * this.ratio);
      if (event.shiftKey && row >= 0 && state.selected >= 0) compare(row);
      else select(row);
    });
    canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => hover(-1));
    canvas.addEventListener("dblclick", () => {
      this.reset();
      draw();
    });
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  move(event) {
    const { pointers } = this;
    const [x, y] = this.place(event);
    if (!pointers.has(event.pointerId)) {
      hover(this.nearest(x, y, REACH * this.ratio), event);
      return;
    }
    const [oldX, oldY] = pointers.get(event.pointerId);
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, [x, y]);
    this.moved += Math.hypot(x - oldX, y - oldY);
    if (other) {
      const grown = Math.hypot(x - other[0], y - other[1]) / Math.hypot(oldX - other[0], oldY - other[1]);
      this.zoomBy(grown || 1, ...other);
    } else if (this.moved > 5 * this.ratio) {
      this.x -= (x - oldX) / this.scale;
      this.y += (y - oldY) / this.scale;
      hover(-1);
      draw();
    }
  }

  press(event) {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (event.key in arrows) {
      const [dx, dy] = arrows[event.key];
      const { width, height } = this.canvas;
      const isHere = state.selected >= 0 && this.isShown(state.selected);
      const row = isHere
        ? this.beside(state.selected, dx, dy)
        : this.nearest(width / 2, height / 2, 2 * Math.max(width, height));
      if (row >= 0) {
        select(row);
        this.reveal(row);
      }
    } else if (event.key === "Enter") $("panel").querySelector(".neighbour")?.focus();
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.4);
    else if (event.key === "-") this.zoomBy(1 / 1.4);
    else if (event.key === "0") this.reset(), draw();
    else return;
    event.preventDefault();
  }

  // Moves the map so that a row is on it.
  reveal(row) {
    const [x, y] = this.at(row);
    const edge = 12 * this.ratio;
    if (x > edge && y > edge && x < this.canvas.width - edge && y < this.canvas.height - edge) return;
    [this.x, this.y] = [this.points[2 * row], this.points[2 * row + 1]];
    draw();
  }
}

const pixel = ([red, green, blue]) => 0xff000000 | (blue << 16) | (green << 8) | red;

// Points sorted into square cells; those outside of [-1.5, 1.5] are in the cells of the rim.
function makeGrid(points) {
  const n = points.length / 2;
  const side = Math.max(1, Math.ceil(Math.sqrt(n / 3)));
  const cell = (p) => Math.min(Math.max(Math.floor(((p + 1.5) / 3) * side), 0), side - 1);
  const place = (row) => cell(points[2 * row + 1]) * side + cell(points[2 * row]);
  const starts = new Int32Array(side * side + 1);
  for (let row = 0; row < n; row++) starts[place(row) + 1] += 1;
  for (let i = 0; i < side * side; i++) starts[i + 1] += starts[i];
  const next = starts.slice();
  const rows = new Int32Array(n);
  for (let row = 0; row < n; row++) rows[next[place(row)]++] = row;
  return { side, cell, starts, rows };
}

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const map of state.maps) map.draw();
  });
}

function layOut() {
  $("maps").replaceChildren();
  const morphs = $("layout").value === "morph";
  $("morph-label").hidden = !morphs;
  state.maps = (morphs ? [page.views] : page.views.map((view) => [view])).map(
    (views) => new PointMap(views, $("maps")),
  );
  $("maps").className = morphs ? "one" : "two";
}

// ---------------------------------------------------------------------------------- selection

function hover(row, event) {
  const tip = $("tip");
  if (row !== state.hovered) {
    state.hovered = row;
    tip.replaceChildren();
    if (row >= 0) {
      if (page.images) tip.append(picture(row, 96));
      const text = [nameOf(row), labelOf(row)].filter(Boolean).join(", ");
      tip.append(el("strong", {}, text));
      if (page.texts) tip.append(el("p", {}, snippet(row, 200)));
      if (page.columns && !page.images && !page.texts) {
        tip.append(cellTable(row, columnOrder().slice(0, 8)));
        if (page.columns.length > 8) tip.append(el("small", {}, `and ${page.columns.length - 8} more`));
      }
    }
    draw();
  }
  tip.hidden = row < 0;
  if (row < 0 || !event) return;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 4))}px`;
}

const isInPanel = () => ["panel", "why"].some((id) => $(id).contains(document.activeElement));

function select(row) {
  const inside = isInPanel();
  state.selected = row;
  state.compared = row < 0 || !page.k ? -1 : neighbours(page.views.at(-1), row)[0];
  showPanel();
  if (inside) $("panel").focus();
  if (row >= 0) say(inWords(row));
  draw();
}

function compare(row) {
  state.compared = row;
  for (const button of document.querySelectorAll(".neighbour")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.row) === row));
  }
  $("why").replaceChildren(...why(state.selected, row));
  $("why").scrollIntoView({ block: "nearest" });
  say(`${nameOf(row)} beside ${nameOf(state.selected)}. ${$("why").lastChild.dataset.words ?? ""}`);
  draw();
}

function inWords(row) {
  const first = [nameOf(row), labelOf(row), snippet(row, 120)].filter(Boolean).join(", ");
  const lists = page.views.map((view) => {
    const found = [...neighbours(view, row)];
    const right = isRight(row, row) ? `, ${countRight(view, row)} of ${found.length} of its class` : "";
    const few = found.slice(0, 3).map((other) => [nameOf(other), labelOf(other)].filter(Boolean).join(" "));
    return `Nearest by ${view.name}${right}: ${few.join("; ")}.`;
  });
  return `${first}. ${lists.join(" ")}`;
}

function showPanel() {
  const row = state.selected;
  const panel = $("panel");
  $("why").replaceChildren(...(state.compared >= 0 ? why(row, state.compared) : []));
  if (row < 0) {
    panel.replaceChildren(
      el("p", { class: "hint" }, "Choose a point, or search, to see its nearest rows and why they are near."),
    );
    return;
  }
  const head = el("div", { class: "head" });
  if (page.images) head.append(picture(row, 84));
  const title = el("div", {}, el("h2", {}, nameOf(row)));
  if (labelOf(row)) title.append(el("p", {}, labelOf(row)));
  if (page.texts) title.append(el("p", { class: "text" }, page.texts[row]));
  head.append(title);
  panel.replaceChildren(head);
  if (page.columns) {
    const columns = columnOrder().slice(0, 200);
    panel.append(el("details", {}, el("summary", {}, `Its ${page.columns.length} columns`), cellTable(row, columns)));
  }
  panel.append(el("div", { class: "lists" }, ...page.views.map((view) => neighbourList(view, row))));
}

function neighbourList(view, row) {
  const found = neighbours(view, row);
  const distances = view.distances.subarray(row * page.k, (row + 1) * page.k);
  const items = [...found].map((other, rank) => {
    const right = isRight(row, other);
    const mark = right === null ? "" : right ? "✓" : "✗";
    const word = right === null ? "" : right ? ", right" : ", wrong";
    const label = [nameOf(other), labelOf(other)].filter(Boolean).join(", ");
    const distance = [el("span", { class: "roomy" }, "distance "), distanceText(distances[rank])];
    const below = page.texts ? [snippet(other, 70)] : distance;
    const button = el(
      "button",
      {
        type: "button",
        class: `neighbour ${right === null ? "" : right ? "right" : "wrong"}`,
        "data-row": other,
        "aria-pressed": String(other === state.compared),
        "aria-label": `${rank + 1}. ${label}${word}, distance ${distanceText(distances[rank])}. ${snippet(other, 80)}`,
        onclick: () => compare(other),
        ondblclick: () => select(other),
        onpointerenter: () => ((state.hovered = other), draw()),
        onpointerleave: () => ((state.hovered = -1), draw()),
      },
      page.images ? picture(other, 30) : null,
      el("span", { class: "of" }, label, el("small", {}, ...below)),
      el("span", { class: "mark", "aria-hidden": "true" }, mark),
    );
    return el("li", {}, button);
  });
  const count = isRight(row, row) ? `${countRight(view, row)} of ${found.length} right` : "";
  const title = page.mode === "generated" ? `nearest ${view.name} rows` : `nearest, ${view.name}`;
  return el(
    "section",
    { "aria-label": `${title} ${count}` },
    el("h3", {}, breakable(title), " ", el("small", {}, count)),
    el("ol", {}, ...items),
  );
}

// ---------------------------------------------------------------------------------- reasons

// Values as a table with bars, the largest first; the rest as one line.
function bars(values, names, format, caption, details = null) {
  const order = values.map((_, j) => j).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
  const shown = order.slice(0, MOST_BARS).filter((j) => values[j] !== 0);
  const rest = order.slice(shown.length).reduce((sum, j) => sum + values[j], 0);
  const most = Math.max(...shown.map((j) => Math.abs(values[j])), Math.abs(rest), 1e-30);
  const line = (name, value, detail) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name, detail ? el("small", {}, detail) : null),
      el("td", {}, format(value)),
      el("td", { class: "bar", "aria-hidden": "true" }, makeBar(value / most)),
    );
  const lines = shown.map((j) => line(names[j], values[j], details?.(j)));
  const others = order.length - shown.length;
  if (others > 0 && rest !== 0) lines.push(line(`${others} others`, rest, null));
  if (!lines.length) lines.push(el("tr", {}, el("td", {}, "nothing: the two are equal")));
  return el("table", { class: "bars" }, el("caption", {}, caption), el("tbody", {}, ...lines));
}

function makeBar(share) {
  const bar = el("i", { class: share < 0 ? "less" : "more" });
  bar.style.width = `${Math.max(2, Math.abs(share) * 100)}%`;
  return bar;
}

function why(row, other) {
  const names = [nameOf(row), nameOf(other)];
  const title = el("h3", {}, `${names[0]} and ${names[1]} `);
  title.append(el("button", { type: "button", class: "go", onclick: () => select(other) }, `Go to ${names[1]}`));
  const side = el("div", { class: "lists" });
  if (page.images) {
    title.prepend(picture(row, 40), picture(other, 40));
  }
  if (!page.columns) return [title, el("p", {}, "No parts by column: the rows have none here.")];
  const columns = page.columns.map((column) => column.name);
  const both = (j) => `${cellText(row, j)} and ${cellText(other, j)}`;
  const words = [];
  page.views.forEach((view, v) => {
    const metric = page.metrics?.[v];
    if (!metric) return;
    const values = parts(metric, row, other);
    const total = values.reduce((sum, value) => sum + value, 0);
    const shares = total > 0 ? values.map((value) => value / total) : values.map(() => 0);
    const caption = `${view.name}: distance ${distanceText(Math.sqrt(Math.max(total, 0)))}, its square by column`;
    side.append(bars(shares, columns, percent, caption, both));
    const most = shares.indexOf(Math.max(...shares));
    words.push(`Largest part by ${view.name}: ${columns[most]}, ${percent(shares[most])}.`);
  });
  side.dataset.words = words.join(" ");
  if (!page.metrics?.[1]) side.append(differences(row, other));
  if (page.mode === "rows" && !page.metrics?.[1]) {
    side.append(el("p", { class: "hint" }, "Parts by column are shown for one linear map of up to 1,024 columns."));
  }
  return [title, side];
}

// The values of two rows beside each other, the most different first.
function differences(row, other) {
  const d = page.columns.length;
  const size = page.columns.map((column, j) => {
    const [a, b] = [page.cells[row * d + j], page.cells[other * d + j]];
    if (column.kind === "category" || a === MISSING || b === MISSING) return a === b ? 0 : 1;
    return Math.abs(a - b) / (column.top ??= topStep(j) || 1);
  });
  const order = size.map((_, j) => j).sort((a, b) => size[b] - size[a]);
  const lines = order.slice(0, 40).map((j) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, page.columns[j].name),
      el("td", {}, cellText(row, j)),
      el("td", {}, cellText(other, j)),
      el("td", { class: "bar", "aria-hidden": "true" }, size[j] ? makeBar(size[j]) : ""),
    ),
  );
  const head = ["column", nameOf(row), nameOf(other), "difference"];
  return el(
    "table",
    { class: "bars wide" },
    el("caption", {}, "Side by side, the most different columns first"),
    el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...lines),
  );
}

function topStep(column) {
  let top = 0;
  for (let at = column; at < page.cells.length; at += page.columns.length) {
    if (page.cells[at] !== MISSING && page.cells[at] > top) top = page.cells[at];
  }
  return top;
}

// ---------------------------------------------------------------------------------- search

// Rows by number, class, text or category; those by number first.
function findRows(asked) {
  const words = asked.trim().toLowerCase();
  if (!words) return null;
  const found = new Set();
  if (/^#?\d+$/.test(words)) {
    const wanted = Number(words.replace("#", ""));
    if (page.mode === "ranking") {
      const row = page.rows.indexOf(wanted);
      if (row >= 0) found.add(row);
    } else {
      page.parts.forEach((part, i) => {
        const end = page.parts[i + 1]?.start ?? page.n;
        if (part.start + wanted < end) found.add(part.start + wanted);
      });
    }
  }
  const having = (texts) => new Set(texts.flatMap((t, i) => (t.toLowerCase().includes(words) ? [i] : [])));
  const classes = hasClasses() ? having(page.labels.classes) : new Set();
  const kinds = (page.columns ?? []).map((column) => having(column.labels ?? []));
  const d = kinds.length;
  for (let row = 0; row < page.n; row++) {
    const isFound =
      (classes.size && classes.has(codeOf(row))) ||
      page.texts?.[row].toLowerCase().includes(words) ||
      kinds.some((labels, j) => labels.size && labels.has(page.cells[row * d + j]));
    if (isFound) found.add(row);
  }
  return found;
}

function showFound(choose) {
  state.matches = findRows($("find").value);
  const list = $("found");
  list.hidden = !state.matches;
  list.replaceChildren();
  if (state.matches) {
    for (const row of [...state.matches].slice(0, MOST_FOUND)) {
      const text = [nameOf(row), labelOf(row), snippet(row, 60)].filter(Boolean).join(", ");
      list.append(el("li", {}, el("button", { type: "button", onclick: () => choose(row) }, text)));
    }
    const count = state.matches.size;
    if (count > MOST_FOUND) list.append(el("li", {}, `and ${(count - MOST_FOUND).toLocaleString("en")} more`));
    if (!count) list.append(el("li", {}, "nothing found"));
    say(`${count} found`);
  }
  if (state.matches && !state.matches.size) state.matches = null;
  draw();
}

function listenToSearch(choose) {
  const pick = (row) => {
    choose(row);
    $("found").hidden = true;
  };
  $("find").addEventListener("input", () => showFound(pick));
  $("tools").addEventListener("submit", (event) => {
    event.preventDefault();
    const first = state.matches?.values().next().value;
    if (first !== undefined) pick(first);
  });
  $("find").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") $("found").querySelector("button")?.focus();
  });
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT"].includes(document.activeElement.tagName);
    if (event.key === "/" && !typing) {
      event.preventDefault();
      $("find").focus();
    } else if (event.key === "Escape") {
      if (state.matches || $("find").value) {
        $("find").value = "";
        showFound(pick);
      } else if (isInPanel() && state.maps.length) state.maps[0].canvas.focus();
      else if (page.mode !== "ranking") select(-1);
    }
  });
}

// ---------------------------------------------------------------------------------- legend

function showLegend() {
  const { keys, key, ramp } = state.style;
  const legend = $("legend");
  legend.replaceChildren();
  if (ramp) {
    const [low, high, text] = ramp;
    legend.append(el("span", {}, low), el("span", { class: "ramp" }), el("span", {}, `${high}  ${text}`));
    return;
  }
  const counts = new Int32Array(keys.length);
  for (const k of key) counts[k] += 1;
  keys.forEach((entry, k) => {
    const button = el(
      "button",
      {
        type: "button",
        "aria-pressed": String(state.only === k),
        title: "Show these alone",
        onclick: () => {
          state.only = state.only === k ? -1 : k;
          showLegend();
          draw();
        },
      },
      swatch(entry),
      `${entry.text} `,
      el("small", {}, counts[k].toLocaleString("en")),
    );
    legend.append(button);
  });
}

function swatch({ colour, shape }) {
  const size = 26;
  const canvas = el("canvas", { width: size, height: size, class: "swatch", "aria-hidden": "true" });
  const { cover, half, size: side } = mask(shape, 9);
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  const [red, green, blue] = channels(swapBlack(colour));
  for (let p = 0; p < cover.length; p++) {
    const to = 4 * ((Math.floor(p / side) + 13 - half) * size + (p % side) + 13 - half);
    image.data.set([red, green, blue, cover[p]], to);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// ---------------------------------------------------------------------------------- pages of maps

function colourNames() {
  const names = [];
  if (page.mode === "generated") names.push(["kind", "real or generated"]);
  else if (page.labels?.classes) names.push(["class", "by class"]);
  if (page.labels?.values) names.push(["value", "by value"]);
  if (page.mode === "rows") {
    if (hasClasses()) names.push(["error", "by error"], ["confidence", "by confidence"]);
    else if (!page.labels) names.push(["part", "one colour"]);
    names.push(["change", "by change of neighbours"]);
  }
  (page.columns ?? []).slice(0, 60).forEach((column, j) => names.push([`column ${j}`, column.name]));
  return names;
}

function startMaps() {
  // A fixed shuffle: the order of drawing should not hide whole classes.
  page.drawn = Int32Array.from({ length: page.n }, (_, i) => i);
  let seed = 1;
  for (let i = page.n - 1; i > 0; i--) {
    seed = (seed * 48271) % 2147483647;
    const j = seed % (i + 1);
    [page.drawn[i], page.drawn[j]] = [page.drawn[j], page.drawn[i]];
  }
  $("colour").append(...colourNames().map(([value, text]) => el("option", { value }, text)));
  const recolour = () => {
    state.only = -1;
    state.style = makeStyle($("colour").value);
    showLegend();
    draw();
  };
  $("colour").addEventListener("change", recolour);
  const [before, after] = page.views.map((view) => view.name);
  if (page.mode === "generated") $("layout").closest("label").hidden = true;
  $("layout").value = page.mode === "rows" && innerWidth < 700 ? "morph" : "both";
  $("layout").addEventListener("change", layOut);
  $("morph-from").textContent = before;
  $("morph-to").textContent = after;
  $("morph").setAttribute("aria-label", `From ${before} to ${after}`);
  $("morph").addEventListener("input", () => {
    state.morph = Number($("morph").value) / 100;
    state.maps[0].setPoints();
    draw();
  });
  $("reset").addEventListener("click", () => {
    for (const map of state.maps) map.reset();
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  listenToSearch((row) => {
    select(row);
    for (const map of state.maps) map.reveal(row);
  });
  recolour();
  layOut();
  const selectByAddress = () => {
    const wanted = /^#(\d+)$/.exec(location.hash);
    select(wanted && Number(wanted[1]) < page.n ? Number(wanted[1]) : -1);
  };
  addEventListener("hashchange", selectByAddress);
  selectByAddress();
  $("summary").textContent = page.mode === "generated" ? generatedSummary() : rowsSummary();
  describeKeys([
    ["click", "neighbours of a row; shift-click compares another one with it"],
    ["arrow keys", "on a map, from row to row"],
    ["Enter", "to its neighbours; on one of them, why it is near"],
    ["/", "search"],
    ["+ − 0", "zoom, whole map; or the wheel, two fingers, a double click"],
    ["Escape", "clears the search, goes back to the map, clears the choice"],
  ]);
  if (page.mode === "generated") showColumns();
}

function describeKeys(keys) {
  $("keys").append(...keys.flatMap(([key, text]) => [el("dt", {}, key), el("dd", {}, text)]));
}

function rowsSummary() {
  const [, stored] = page.parts;
  const count = stored
    ? `${stored.start} rows, and ${page.n - stored.start} stored ones, pale, in which they are searched.`
    : `${page.n.toLocaleString("en")} rows.`;
  if (!hasClasses()) return `${count} The ${page.k} nearest rows of each, under both metrics.`;
  const shares = page.views.map((view) => {
    let [right, all] = [0, 0];
    for (let row = 0; row < page.n; row++) {
      if (codeOf(row) < 0 || (stored && row >= stored.start)) continue;
      right += countRight(view, row);
      all += page.k;
    }
    return `${((100 * right) / (all || 1)).toFixed(1)}% (${view.name})`;
  });
  return `${count} Of the ${page.k} nearest neighbours of a row, ${shares.join(" and ")} are of its class.`;
}

function generatedSummary() {
  const known = page.similarity.filter((value) => value !== null);
  const mean = known.reduce((sum, value) => sum + value, 0) / (known.length || 1);
  const half = page.n / 2;
  return (
    `${half.toLocaleString("en")} real rows and as many generated ones. The mean similarity of a column is ` +
    `${mean.toFixed(3)}, where 1 is equal. Generated rows may be near to real ones: no privacy is promised.`
  );
}

// ---------------------------------------------------------------------------------- columns

function showColumns(all = false) {
  const order = page.similarity.map((_, j) => j).sort((a, b) => (page.similarity[a] ?? 2) - (page.similarity[b] ?? 2));
  const shown = all ? order : order.slice(0, 24);
  const section = $("more");
  section.replaceChildren(
    el("h2", {}, "Columns side by side"),
    el("p", {}, "The least similar first. Blue is real, orange is generated."),
    el("div", { id: "columns" }, ...shown.map(histogram)),
  );
  if (shown.length < order.length) {
    section.append(el("button", { type: "button", onclick: () => showColumns(true) }, `All ${order.length} columns`));
  }
}

function histogram(column) {
  const { kind, name, labels } = page.columns[column];
  const d = page.columns.length;
  const top = kind === "category" ? labels.length : topStep(column) + 1;
  const n = kind === "category" ? Math.min(labels.length, 12) : Math.min(20, Math.max(top, 1));
  const counts = [new Float64Array(n), new Float64Array(n)];
  const means = [[], []].map(() => ({ sum: 0, n: 0 }));
  for (let row = 0; row < page.n; row++) {
    const code = page.cells[row * d + column];
    if (code === MISSING) continue;
    const side = row < page.n / 2 ? 0 : 1;
    const bin = kind === "category" ? code : Math.floor((code * n) / top);
    if (bin < n) counts[side][bin] += 1;
    means[side].n += 1;
    if (kind === "number") means[side].sum += cell(row, column);
  }
  const most = Math.max(...counts[0], ...counts[1], 1);
  const SVG = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 200 70");
  svg.setAttribute("role", "img");
  const [real, made] = means.map(({ sum, n: count }) => (count ? number(sum / count) : "none"));
  const similarity = page.similarity[column];
  const words = kind === "number" ? `mean ${real} and ${made}` : kind === "date" ? "dates" : `${labels.length} values`;
  svg.setAttribute("aria-label", `${name}: ${words}, similarity ${similarity?.toFixed(3) ?? "unknown"}`);
  for (let bin = 0; bin < n; bin++) {
    for (const side of [0, 1]) {
      const bar = document.createElementNS(SVG, "rect");
      const height = (66 * counts[side][bin]) / most;
      const size = { x: (bin + 0.08 + 0.42 * side) * (200 / n), y: 68 - height, width: 0.4 * (200 / n), height };
      for (const [key, value] of Object.entries(size)) bar.setAttribute(key, value);
      bar.setAttribute("fill", COLOURS[side]);
      const tip = document.createElementNS(SVG, "title");
      const what = kind === "category" ? labels[bin] : `bin ${bin + 1} of ${n}`;
      tip.textContent = `${what}: ${counts[0][bin]} real, ${counts[1][bin]} generated`;
      bar.append(tip);
      svg.append(bar);
    }
  }
  const text = `${words}; similarity ${similarity?.toFixed(3) ?? "unknown"}`;
  return el("figure", {}, svg, el("figcaption", {}, el("strong", {}, name), " ", el("small", {}, text)));
}

// ---------------------------------------------------------------------------------- rankings

const ranking = { query: 0, document: 0, worstFirst: false };

function startRanking() {
  for (const element of document.querySelectorAll(".of-maps")) element.hidden = true;
  $("stage").classList.add("ranking");
  $("find").placeholder = "row number or text";
  const sort = el("input", { type: "checkbox", id: "worst" });
  sort.addEventListener("change", () => ((ranking.worstFirst = sort.checked), showQueries()));
  const ask = el("input", { type: "search", id: "query", placeholder: "query", "aria-label": "Find a query" });
  ask.addEventListener("input", showQueries);
  const order = page.quality ? el("label", {}, sort, " worst first") : null;
  $("side").replaceChildren(
    el("nav", { id: "queries", "aria-label": "Queries" }, el("h2", {}, "Queries"), ask, order, el("ol", { id: "names" })),
    el("section", { id: "documents", "aria-label": "Documents" }),
  );
  listenToSearch((row) => {
    const query = page.starts.findLastIndex((start) => start <= row);
    showQuery(query, row - page.starts[query]);
    $("documents").querySelector("[aria-pressed=true]")?.scrollIntoView({ block: "nearest" });
  });
  const mean = page.quality?.filter((value) => value !== null);
  const quality = mean?.length
    ? ` Mean ${page.measure} ${(mean.reduce((sum, value) => sum + value, 0) / mean.length).toFixed(3)}.`
    : "";
  $("summary").textContent =
    `${page.queries.length.toLocaleString("en")} queries, ${page.n.toLocaleString("en")} documents.${quality}`;
  describeKeys([
    ["arrow keys", "in the documents, from one to the next"],
    ["/", "search"],
    ["Escape", "clears the search"],
  ]);
  $("documents").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const size = page.starts[ranking.query + 1] - page.starts[ranking.query];
    showDocument(Math.min(Math.max(ranking.document + step, 0), size - 1), true);
  });
  showQueries();
  showQuery(0, 0);
}

function showQueries() {
  const words = $("query").value.toLowerCase();
  let order = page.queries.map((_, q) => q).filter((q) => page.queries[q].toLowerCase().includes(words));
  if (ranking.worstFirst) order.sort((a, b) => (page.quality[a] ?? 2) - (page.quality[b] ?? 2));
  const more = order.length - 300;
  order = order.slice(0, 300);
  $("names").replaceChildren(
    ...order.map((q) => {
      const quality = page.quality?.[q];
      const button = el(
        "button",
        { type: "button", "data-query": q, "aria-pressed": String(q === ranking.query), onclick: () => showQuery(q, 0) },
        page.queries[q],
        page.quality ? el("small", {}, quality === null ? "nothing relevant" : quality.toFixed(3)) : null,
      );
      return el("li", {}, button);
    }),
    ...(more > 0 ? [el("li", {}, `and ${more} more`)] : []),
  );
}

// A document is out of place where a better one of its query is below it.
function outOfPlace(start, end) {
  const wrong = new Set();
  let best = -Infinity;
  for (let row = end - 1; row >= start; row--) {
    if (page.grades[row] < best) wrong.add(row);
    best = Math.max(best, page.grades[row]);
  }
  return wrong;
}

function showQuery(query, chosen) {
  ranking.query = query;
  for (const button of $("names").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.query) === query));
  }
  const [start, end] = [page.starts[query], page.starts[query + 1]];
  const wrong = page.grades ? outOfPlace(start, end) : new Set();
  const last = Math.max(Math.min(end, start + 200), start + chosen + 1);
  const items = [];
  for (let row = start; row < last; row++) {
    const grade = page.grades ? `grade ${number(page.grades[row])}` : "";
    const isWrong = wrong.has(row);
    const text = `${nameOf(row)}, ${grade ? `${grade}, ` : ""}score ${number(page.scores[row])}`;
    const button = el(
      "button",
      {
        type: "button",
        class: `document ${isWrong ? "wrong" : ""}`,
        "aria-pressed": "false",
        "aria-label": `${row - start + 1}. ${text}${isWrong ? ", above a better one" : ""}. ${snippet(row, 80)}`,
        onclick: () => showDocument(row - start),
      },
      page.images ? picture(row, 34) : null,
      el("span", { class: "of" }, text, el("small", {}, snippet(row, 90))),
      isWrong ? el("span", { class: "mark" }, "above a better one") : null,
    );
    items.push(el("li", {}, button));
  }
  if (last < end) items.push(el("li", {}, `and ${end - last} more`));
  $("documents").replaceChildren(el("h2", {}, `Query ${page.queries[query]}`), el("ol", {}, ...items));
  showDocument(chosen);
}

function showDocument(place, focus = false) {
  ranking.document = place;
  const row = page.starts[ranking.query] + place;
  $("documents").querySelectorAll(".document").forEach((button, i) => {
    button.setAttribute("aria-pressed", String(i === place));
    if (i === place && focus) button.focus();
  });
  const d = page.reasons.length;
  const added = [...page.added.subarray(row * d, (row + 1) * d)];
  const signed = (value) => (value > 0 ? "+" : "") + number(value);
  const value = (j) => (j < page.columns.length ? cellText(row, j) : null);
  const panel = $("panel");
  panel.replaceChildren(el("h2", {}, `Why ${nameOf(row)} is at rank ${place + 1}`));
  if (page.texts) panel.append(el("p", { class: "text" }, page.texts[row]));
  panel.append(bars(added, page.reasons, signed, `score ${number(page.scores[row])}, by what adds to it`, value));
  if (row + 1 < page.starts[ranking.query + 1]) {
    const next = page.added.subarray((row + 1) * d, (row + 2) * d);
    const caption = `ahead of ${nameOf(row + 1)}, the next, by ${number(page.scores[row] - page.scores[row + 1])}`;
    const both = (j) => (j < page.columns.length ? `${cellText(row, j)} and ${cellText(row + 1, j)}` : null);
    panel.append(bars(added.map((v, j) => v - next[j]), page.reasons, signed, caption, both));
  }
  panel.append(el("details", {}, el("summary", {}, `Its ${page.columns.length} columns`), cellTable(row, columnOrder().slice(0, 200))));
  say(`Rank ${place + 1}: ${nameOf(row)}, score ${number(page.scores[row])}. ${snippet(row, 80)}`);
}

// ---------------------------------------------------------------------------------- start

async function start() {
  page = JSON.parse($("data").textContent);
  $("data").remove();
  await unpackAll(page);
  if (page.mode === "ranking") startRanking();
  else startMaps();
  const made = `Made by skdml ${page.version}. This file holds its data and loads nothing.`;
  $("notes").append(...[...page.notes, made].map((note) => el("p", {}, note)));
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  $("summary").textContent = `This page cannot be shown: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
