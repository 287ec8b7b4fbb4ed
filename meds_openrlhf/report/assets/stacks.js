// Stacked bars, for the parts of a step's time and a prompt's rollouts per visit, and sparklines.

/** Bars over `steps`; `layers` are {label, kind, values}, from the bottom up; `kind` is a CSS class for the colour. */
function stackedBars(title, steps, layers, unit, { width: across = CHART.width, height = CHART.height } = {}) {
  const box = { ...CHART, width: across, right: across - 10, height, bottom: height - (CHART.height - CHART.bottom) };
  const totals = steps.map((_, i) => layers.reduce((sum, layer) => sum + (layer.values[i] || 0), 0));
  const high = Math.max(...totals, 0) || 1;
  const y = scale(0, high * 1.04, box.bottom, box.top);
  const slot = (box.right - box.left) / steps.length;
  const x = (i) => box.left + slot * (i + 0.5);
  const tip = h("div", { class: "tip", role: "status", hidden: true });
  const svg = s("svg", {
    viewBox: `0 0 ${box.width} ${box.height}`, class: "chart", role: "img", tabindex: 0,
    "aria-label": `${title}: ${layers.map((layer) => layer.label).join(", ")} over steps; arrow keys move along`,
  }, axes(box, [], x, ticks(0, high, 4), y, unit));
  const every = Math.ceil(steps.length / Math.min(Math.floor((box.right - box.left) / 42), 12));
  steps.forEach((step, i) => {
    if (i % every === 0) svg.append(s("text", { class: "xlabel", x: round1(x(i)), y: box.bottom + 15, "text-anchor": "middle" }, integer(step)));
  });
  const width = Math.min(Math.max(slot - (slot > 6 ? 2 : 0), 0.6), 48);
  const base = steps.map(() => 0);
  for (const layer of layers) {
    const d = steps.map((_, i) => {
      const value = layer.values[i] || 0;
      if (!value) return "";
      const bottom = y(base[i]);
      base[i] += value;
      return `M${round1(x(i) - width / 2)} ${round1(bottom)}V${round1(y(base[i]))}h${round1(width)}V${round1(bottom)}z`;
    }).join("");
    svg.append(s("path", { d, class: `bar ${layer.kind}` }));
  }
  const cursor = s("rect", { class: "column", visibility: "hidden", y: box.top, height: box.bottom - box.top, width: round1(Math.max(slot, 2)) });
  svg.append(cursor);
  columnTips(svg, tip, cursor, box, slot, steps, layers, totals, unit);
  return h("div", { class: "plot" }, svg, tip);
}

function columnTips(svg, tip, cursor, box, slot, steps, layers, totals, unit) {
  let at = -1;
  const leave = () => {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
    at = -1;
  };
  const show = (place) => {
    at = Math.min(Math.max(place, 0), steps.length - 1);
    const x = box.left + slot * at;
    cursor.setAttribute("x", round1(x));
    cursor.setAttribute("visibility", "visible");
    const rows = layers.filter((layer) => layer.values[at]).reverse().map((layer) => h("tr", {},
      h("td", {}, h("i", { class: `swatch ${layer.kind}` })), h("td", {}, layer.label),
      h("td", { class: "num" }, figure(layer.values[at], unit))));
    tip.replaceChildren(h("b", {}, `step ${integer(steps[at])}: ${figure(totals[at], unit)}`), h("table", {}, h("tbody", {}, rows)));
    placeTip(tip, x / box.width, (x + slot) / box.width);
  };
  svg.addEventListener("pointermove", (event) => {
    const bounds = svg.getBoundingClientRect();
    const x = ((event.clientX - bounds.left) / bounds.width) * box.width;
    if (x < box.left || x > box.right) leave();
    else show(Math.floor((x - box.left) / slot));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 };
    if (event.key === "Escape") leave();
    else if (event.key in moves) {
      show(moves[event.key]);
      event.preventDefault();
    }
  });
}

/** The drawing width of a single chart: its width on the screen, so that its labels keep their size. */
const drawnWidth = (most) => Math.max(Math.min(most, document.documentElement.clientWidth - 60), 280);

/** The legend of the layers' colours. */
function stackLegend(layers) {
  return h("div", { class: "legend" }, layers.map((layer) => h("span", { class: "key" }, h("i", { class: `swatch ${layer.kind}` }), layer.label)));
}

/** Small bars, one for each visit. */
function sparkline(values, kind, label) {
  const width = 112;
  const height = 24;
  const high = Math.max(...values, 1);
  const slot = width / values.length;
  const bar = Math.max(Math.min(slot - 1, 10), 0.7);
  const d = values.map((value, i) => (value ? `M${round1(i * slot)} ${height}v${-round1((value / high) * (height - 2))}h${round1(bar)}V${height}z` : "")).join("");
  return s("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": label },
    s("line", { x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5, class: "ground" }), s("path", { d, class: `bar ${kind}` }));
}
