// Create elements. Data of a run goes through text nodes and attributes, never through markup.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** An HTML element; attributes that begin with "on" are listeners. */
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
const s = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** A MathML element. */
const m = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/1998/Math/MathML", tag), attributes, children);

/** A toggle button with its state in `aria-pressed`. */
function toggle(label, pressed, change) {
  const press = ({ currentTarget }) => {
    const now = currentTarget.getAttribute("aria-pressed") !== "true";
    currentTarget.setAttribute("aria-pressed", String(now));
    change(now);
  };
  return h("button", { type: "button", class: "toggle", "aria-pressed": String(pressed), onclick: press }, label);
}

/** A group of buttons to choose a value: `options` are [value, label]. */
function choice(name, options, chosen, change) {
  const buttons = options.map(([value, label], i) => toggle(label, value === chosen, () => {
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === i)));
    change(value);
  }));
  return h("span", { class: "choice", role: "group", "aria-label": name }, buttons);
}

/** A text with every occurrence of `query` (lower case) marked. */
function marked(text, query) {
  if (!query) return [text];
  const plain = query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return text.split(new RegExp(`(${plain})`, "i")).map((part, i) => (i % 2 ? h("mark", {}, part) : part));
}

/** The part of a text around the first occurrence of `query`. */
function around(text, query, room) {
  const found = Math.max(text.toLowerCase().indexOf(query), 0);
  const start = Math.max(found - room, 0);
  const end = Math.min(found + query.length + room, text.length);
  return `${start ? "…" : ""}${text.slice(start, end)}${end < text.length ? "…" : ""}`.replace(/\s+/g, " ");
}

/** Show a tip beside `from` to `to` of its plot (fractions of the width), completely inside the window. */
function placeTip(tip, from, to) {
  const plot = tip.parentElement.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  tip.style.left = "0";
  tip.hidden = false;
  const width = tip.offsetWidth;
  const right = plot.left + to * plot.width + 10;
  const left = plot.left + from * plot.width - 10 - width;
  const best = right + width + 6 <= room ? right : left;
  tip.style.left = `${Math.max(Math.min(best, room - width - 6), 6) - plot.left}px`;
}

const integer = (value) => Math.round(value).toLocaleString("en-US");

const percent = (value) => `${(100 * value).toFixed(value && Math.abs(value) < 0.1 ? 1 : 0)}%`;

/** A number formatted in the unit of its chart. */
function figure(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "share") return percent(value);
  if (unit === "bytes") return bytes(value);
  const size = Math.abs(value);
  const text = size >= 1e5 ? integer(value) : size && (size < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return unit ? `${text} ${unit}` : text;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const place = Math.min(Math.floor(Math.log10(Math.max(Math.abs(value), 1)) / 3), units.length - 1);
  return `${Number((value / 1000 ** place).toPrecision(3))} ${units[place]}`;
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

const count = (number, what) => `${integer(number)} ${what}${number === 1 ? "" : "s"}`;

const short = (text, most) => {
  const line = text.replace(/\s+/g, " ");
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
};
