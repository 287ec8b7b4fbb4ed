// Charts: lines with a color per run and a dash per series, stacked bars, and sparklines. The pointer or arrow keys show a step's values.

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2", "1 2"];
// About the width of a chart on a screen of 1280 pixels, so that labels are drawn at their nominal size.
const CHART = { width: 390, height: 212, left: 54, right: 380, top: 10, bottom: 170 };
const MOVES = { ArrowLeft: -1, ArrowRight: 1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

const round1 = (value) => Math.round(value * 10) / 10;

/** Up to `most` round numbers that span `low` to `high`. */
function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** A function that maps values to positions. */
const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

/** The range of a vertical axis for `values`, with a margin, extended to 0 if that is near. */
function extent(values, fromZero) {
  const known = values.filter((value) => value !== null);
  let low = known.reduce((a, b) => Math.min(a, b), Infinity);
  const high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  if (fromZero || (low >= 0 && low < 0.35 * high)) low = Math.min(low, 0);
  if (!known.length || (low === 0 && high === 0)) return [0, 1];
  if (low === high) return [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const air = (high - low) * 0.06;
  return [low === 0 ? 0 : low - air, high + air];
}

/** Exponential moving average with bias correction; gaps stay gaps. */
function smoothed(values, weight) {
  let total = 0;
  let norm = 0;
  return values.map((value) => {
    if (value === null || !weight) return value;
    total = weight * total + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return total / norm;
  });
}

/** Grid, labels and axis titles of a chart: `box` is {left, right, top, bottom}, `xTicks` are [position, step]. */
function axes(box, xTicks, yTicks, y, unit) {
  return s("g", { class: "axes", "aria-hidden": "true" },
    yTicks.map((value) => [
      s("line", { x1: box.left, x2: box.right, y1: round1(y(value)), y2: round1(y(value)) }),
      s("text", { x: box.left - 6, y: round1(y(value)) + 3.5, "text-anchor": "end" }, tickText(value, unit)),
    ]),
    xTicks.map(([x, step]) => s("text", { x: round1(x), y: box.bottom + 15, "text-anchor": "middle" }, integer(step))),
    s("text", { x: box.right, y: box.bottom + 32, "text-anchor": "end" }, "step"));
}

function tickText(value, unit) {
  if (unit === "share") return `${Number((100 * value).toPrecision(4))}%`;
  if (unit === "bytes") return bytes(value);
  const size = Math.abs(value);
  let text = size && size < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(4)));
  if (size >= 1e4) text = size >= 1e6 ? `${Number((value / 1e6).toPrecision(4))}M` : `${Number((value / 1e3).toPrecision(4))}k`;
  return unit ? `${text} ${unit}` : text;
}

/** A chart with a cursor, which is `width` wide around `x(i)` of the chosen step; `tip(i)` has the heading, table rows and marks of a step. */
function plot(box, label, content, cursorClass, steps, x, width, tip) {
  const note = h("div", { class: "tip", role: "status", hidden: true });
  const cursor = s("rect", { class: cursorClass, visibility: "hidden", y: box.top, height: box.bottom - box.top, width: round1(width) });
  const marks = s("g", {});
  let at = null;
  const leave = () => {
    at = null;
    note.hidden = true;
    marks.replaceChildren();
    cursor.setAttribute("visibility", "hidden");
  };
  const show = (place) => {
    at = Math.min(Math.max(place, 0), steps.length - 1);
    const found = tip(at);
    cursor.setAttribute("x", round1(x(at) - width / 2));
    cursor.setAttribute("visibility", "visible");
    marks.replaceChildren(...found.marks || []);
    note.replaceChildren(h("b", {}, found.heading), h("table", {}, h("tbody", {}, found.rows)));
    placeTip(note, (x(at) - width / 2) / box.width, (x(at) + width / 2) / box.width);
  };
  const svg = s("svg", {
    viewBox: `0 0 ${box.width} ${box.height}`, class: "chart", role: "img", tabindex: 0, "aria-label": label, onpointerleave: leave, onblur: leave,
    onpointermove: (event) => {
      const bounds = svg.getBoundingClientRect();
      const pointed = ((event.clientX - bounds.left) / bounds.width) * box.width;
      const distance = (i) => Math.abs(x(i) - pointed);
      if (steps.length) show(steps.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0));
    },
    onkeydown: (event) => {
      if (event.key === "Escape") leave();
      if (!(event.key in MOVES) || !steps.length) return;
      const move = MOVES[event.key];
      show((at ?? (move > 0 ? -1 : steps.length)) + move);
      event.preventDefault();
    },
  }, content, cursor, marks);
  return h("div", { class: "plot" }, svg, note);
}

const tipRow = (kind, label, value, unit) => h("tr", {}, h("td", {}, h("i", { class: `swatch ${kind}` })), h("td", {}, label), h("td", { class: "num" }, figure(value, unit)));

/** A panel of lines {run, color, name, series, label, dash, steps, values}; those of the series in `hidden` are not drawn. */
function linePanel(panel, lines, smoothing, hidden) {
  const labels = [...new Map(lines.map((line) => [line.series, line])).values()];
  const single = new Set(lines.map((line) => line.run)).size === 1;
  const holder = h("div", {});
  const draw = () => holder.replaceChildren(linePlot(panel, lines.filter((line) => !hidden.has(line.series)), smoothing, (line) => (
    [!single && line.name, (single || labels.length > 1) && line.label].filter(Boolean).join(" · "))));
  draw();
  const legend = labels.map((line) => {
    const sample = s("svg", { viewBox: "0 0 26 8", class: `dash ${single ? `c${line.color % 8}` : ""}`, "aria-hidden": "true" },
      s("line", { x1: 0, x2: 26, y1: 4, y2: 4, "stroke-dasharray": DASHES[line.dash % DASHES.length] || null }));
    return toggle([sample, line.label], !hidden.has(line.series), (on) => {
      hidden[on ? "delete" : "add"](line.series);
      draw();
    });
  });
  return h("figure", { class: "panel" },
    h("figcaption", {}, h("h4", {}, panel.title), panel.hint && h("p", { class: "hint" }, panel.hint)),
    holder, labels.length > 1 && h("div", { class: "legend", role: "group", "aria-label": "Series" }, legend));
}

function linePlot(panel, lines, smoothing, nameOf) {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  const [first, last] = [steps[0] ?? 0, steps[steps.length - 1] ?? 1];
  const [low, high] = extent(lines.flatMap((line) => line.values), panel.unit === "share");
  const x = scale(first, last === first ? first + 1 : last, CHART.left, CHART.right);
  const y = scale(low, high, CHART.bottom, CHART.top);
  const path = (line, values, kind) => {
    const points = values.map((value, i) => value !== null && [round1(x(line.steps[i])), round1(y(value))]).filter(Boolean);
    const dots = points.length <= 40 && kind !== "raw" ? points : [];
    return s("g", { class: `line c${line.color % 8} ${kind}` },
      s("path", { d: points.map((point, i) => `${i ? "L" : "M"}${point.join(" ")}`).join(""), "stroke-dasharray": DASHES[line.dash % DASHES.length] || null }),
      dots.map(([cx, cy]) => s("circle", { cx, cy, r: points.length === 1 ? 3.5 : 1.8 })));
  };
  const tip = (i) => {
    const known = lines.map((line) => [line, line.values[line.steps.indexOf(steps[i])] ?? null]).filter(([, value]) => value !== null);
    return {
      heading: `step ${integer(steps[i])}`,
      rows: known.map(([line, value]) => tipRow(`c${line.color % 8}`, nameOf(line), value, panel.unit)),
      marks: known.map(([line, value]) => s("circle", { cx: round1(x(steps[i])), cy: round1(y(value)), r: 3, class: `dot c${line.color % 8}` })),
    };
  };
  const xTicks = ticks(first, last, 6).filter(Number.isInteger).map((step) => [x(step), step]);
  return plot(CHART, `${panel.title} over steps; arrow keys move along the steps`,
    [axes(CHART, xTicks, ticks(low, high, 5), y, panel.unit), lines.map((line) => [smoothing > 0 && path(line, line.values, "raw"), path(line, smoothed(line.values, smoothing), "")])],
    "cursor", steps, (i) => x(steps[i]), 1, tip);
}

/** Bars over `steps` and their legend; `layers` are {label, kind, values}, from the bottom up; `kind` is a CSS class for the color. */
function stackedBars(title, steps, layers, unit, { width: across = CHART.width, height = CHART.height } = {}) {
  const box = { ...CHART, width: across, right: across - 10, height, bottom: height - (CHART.height - CHART.bottom) };
  const totals = steps.map((_, i) => sum(layers.map((layer) => layer.values[i] || 0)));
  const high = Math.max(...totals, 0) || 1;
  const y = scale(0, high * 1.04, box.bottom, box.top);
  const slot = (box.right - box.left) / steps.length;
  const x = (i) => box.left + slot * (i + 0.5);
  const every = Math.ceil(steps.length / Math.min(Math.floor((box.right - box.left) / 42), 12));
  const width = Math.min(Math.max(slot - (slot > 6 ? 2 : 0), 0.6), 48);
  const base = steps.map(() => 0);
  const bars = layers.map((layer) => s("path", { class: `bar ${layer.kind}`, d: steps.map((_, i) => {
    const [bottom, top] = [y(base[i]), y(base[i] += layer.values[i] || 0)];
    return layer.values[i] ? `M${round1(x(i) - width / 2)} ${round1(bottom)}V${round1(top)}h${round1(width)}V${round1(bottom)}z` : "";
  }).join("") }));
  const xTicks = steps.map((step, i) => [x(i), step]).filter((_, i) => i % every === 0);
  const tip = (i) => ({
    heading: `step ${integer(steps[i])}: ${figure(totals[i], unit)}`,
    rows: layers.filter((layer) => layer.values[i]).reverse().map((layer) => tipRow(layer.kind, layer.label, layer.values[i], unit)),
  });
  return [
    plot(box, `${title}: ${layers.map((layer) => layer.label).join(", ")} over steps; arrow keys move along`,
      [axes(box, xTicks, ticks(0, high, 4), y, unit), bars], "column", steps, x, Math.max(slot, 2), tip),
    h("div", { class: "legend" }, layers.map((layer) => h("span", { class: "key" }, h("i", { class: `swatch ${layer.kind}` }), layer.label))),
  ];
}

/** The drawing width of a single chart: its width on the screen, so that its labels keep their size. */
const drawnWidth = (most) => Math.max(Math.min(most, document.documentElement.clientWidth - 60), 280);

/** Small bars, one for each visit. */
function sparkline(values, kind, label) {
  const [width, height] = [112, 24];
  const slot = width / values.length;
  const bar = round1(Math.max(Math.min(slot - 1, 10), 0.7));
  const high = Math.max(...values, 1);
  const scaled = values.map((value) => round1((value / high) * (height - 2)));
  const d = scaled.map((value, i) => (value ? `M${round1(i * slot)} ${height}v${-value}h${bar}V${height}z` : "")).join("");
  return s("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": label },
    s("line", { x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5, class: "ground" }), s("path", { d, class: `bar ${kind}` }));
}
