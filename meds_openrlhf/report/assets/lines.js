// Line charts: a colour per run (for a single run, per series), a dash per series; the pointer or arrow keys show a step's values.

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2", "1 2"];
// About the width of a chart on a screen of 1280 pixels, so that labels are drawn at their nominal size.
const CHART = { width: 390, height: 212, left: 54, right: 380, top: 10, bottom: 170 };

/** A panel for some runs: `lines` are {run, color, name, series, label, dash, steps, values}. */
class LineChart {
  constructor(panel, lines, smoothing) {
    this.panel = panel;
    this.hidden = curveState.off.get(panel.title) || new Set(panel.off);
    curveState.off.set(panel.title, this.hidden); // survives a redraw
    this.lines = lines;
    this.smoothing = smoothing;
    this.single = new Set(lines.map((line) => line.run)).size === 1;
    this.labels = [...new Map(lines.map((line) => [line.series, line])).values()];
    this.tip = h("div", { class: "tip", role: "status", hidden: true });
    this.svg = s("svg", {
      viewBox: `0 0 ${CHART.width} ${CHART.height}`, tabindex: 0, role: "img", class: "chart",
      "aria-label": `${panel.title} over steps; arrow keys move along the steps`,
      onpointermove: (event) => this.point(event), onpointerleave: () => this.leave(),
      onkeydown: (event) => this.key(event), onblur: () => this.leave(),
    });
    this.node = h("figure", { class: "panel" },
      h("figcaption", {}, h("h4", {}, panel.title), panel.hint && h("p", { class: "hint" }, panel.hint)),
      h("div", { class: "plot" }, this.svg, this.tip), this.legend());
    this.draw();
  }

  legend() {
    if (this.labels.length < 2) return null;
    return h("div", { class: "legend", role: "group", "aria-label": "Series" }, this.labels.map((line) => {
      const sample = s("svg", { viewBox: "0 0 26 8", class: `dash ${this.single ? `c${line.color % 8}` : ""}`, "aria-hidden": "true" },
        s("line", { x1: 0, x2: 26, y1: 4, y2: 4, "stroke-dasharray": DASHES[line.dash % DASHES.length] || null }));
      return toggle([sample, line.label], !this.hidden.has(line.series), (on) => {
        this.hidden[on ? "delete" : "add"](line.series);
        this.draw();
      });
    }));
  }

  draw() {
    this.shown = this.lines.filter((line) => !this.hidden.has(line.series));
    this.steps = [...new Set(this.shown.flatMap((line) => line.steps))].sort((a, b) => a - b);
    const smooth = this.shown.map((line) => smoothed(line.values, this.smoothing));
    const spanned = this.smoothing ? this.shown.map((line) => line.values) : smooth;
    const [low, high] = extent(spanned.flat(), this.panel.unit === "share");
    const first = this.steps[0] ?? 0;
    const last = this.steps[this.steps.length - 1] ?? 1;
    this.x = scale(first, last === first ? first + 1 : last, CHART.left, CHART.right);
    this.y = scale(low, high, CHART.bottom, CHART.top);
    this.svg.replaceChildren(axes(CHART, stepTicks(first, last, 6), this.x, ticks(low, high, 5), this.y, this.panel.unit));
    this.shown.forEach((line, i) => {
      if (this.smoothing) this.svg.append(this.path(line, line.values, "raw"));
      this.svg.append(this.path(line, smooth[i], ""));
    });
    this.cursor = s("line", { class: "cursor", y1: CHART.top, y2: CHART.bottom, x1: -9, x2: -9 });
    this.dots = s("g", {});
    this.svg.append(this.cursor, this.dots);
    this.at = null;
  }

  path(line, values, kind) {
    const points = [];
    values.forEach((value, i) => value !== null && points.push([this.x(line.steps[i]), this.y(value)]));
    const group = s("g", { class: `line c${line.color % 8} ${kind}` });
    const few = points.length <= 40;
    const d = thinned(points, CHART.right - CHART.left).map(([x, y], i) => `${i ? "L" : "M"}${round1(x)} ${round1(y)}`).join("");
    group.append(s("path", { d, "stroke-dasharray": DASHES[line.dash % DASHES.length] || null }));
    if (few && kind !== "raw") for (const [x, y] of points) group.append(s("circle", { cx: round1(x), cy: round1(y), r: points.length === 1 ? 3.5 : 1.8 }));
    return group;
  }

  point(event) {
    const bounds = this.svg.getBoundingClientRect();
    const x = ((event.clientX - bounds.left) / bounds.width) * CHART.width;
    if (!this.steps.length) return;
    let best = 0;
    this.steps.forEach((step, i) => {
      if (Math.abs(this.x(step) - x) < Math.abs(this.x(this.steps[best]) - x)) best = i;
    });
    this.show(best);
  }

  key(event) {
    const last = this.steps.length - 1;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageDown: 10, PageUp: -10 };
    if (event.key === "Escape") return this.leave();
    if (event.key === "Home") this.show(0);
    else if (event.key === "End") this.show(last);
    else if (event.key in moves) this.show(Math.min(Math.max((this.at ?? (moves[event.key] > 0 ? -1 : last + 1)) + moves[event.key], 0), last));
    else return undefined;
    return event.preventDefault();
  }

  show(place) {
    this.at = place;
    const step = this.steps[place];
    const x = round1(this.x(step));
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.dots.replaceChildren();
    const rows = [];
    for (const line of this.shown) {
      const value = line.values[line.steps.indexOf(step)];
      if (value === null || value === undefined) continue;
      this.dots.append(s("circle", { cx: x, cy: round1(this.y(value)), r: 3, class: `dot c${line.color % 8}` }));
      const name = [!this.single && line.name, this.labels.length > 1 && line.label].filter(Boolean).join(" · ");
      rows.push(h("tr", {}, h("td", {}, h("i", { class: `swatch c${line.color % 8}` })), h("td", {}, name || line.label), h("td", { class: "num" }, figure(value, this.panel.unit))));
    }
    this.tip.replaceChildren(h("b", {}, `step ${integer(step)}`), h("table", {}, h("tbody", {}, rows)));
    placeTip(this.tip, x / CHART.width, x / CHART.width);
  }

  leave() {
    this.tip.hidden = true;
    this.cursor.setAttribute("x1", -9);
    this.cursor.setAttribute("x2", -9);
    this.dots.replaceChildren();
    this.at = null;
  }
}
