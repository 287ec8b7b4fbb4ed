// All curves: a color per run and a heading per group of panels; runs can be hidden and lines smoothed.

const curveState = { hidden: new Set(), off: new Map(), smoothing: 0, open: false };
const MOST_BARS = 150;

function curves(page) {
  const view = h("div", {});
  const draw = () => view.replaceChildren(...panelGroups(page));
  draw();
  const slider = h("input", {
    type: "range", min: 0, max: 0.95, step: 0.05, value: curveState.smoothing, id: "smoothing",
    oninput: (event) => {
      curveState.smoothing = Number(event.target.value);
      draw();
    },
  });
  const runs = page.runs.map((run, i) => toggle([h("i", { class: `swatch c${i % 8}` }), run.name], !curveState.hidden.has(i), (on) => {
    curveState.hidden[on ? "delete" : "add"](i);
    draw();
  }));
  return [
    h("h1", {}, "Curves"),
    h("div", { class: "controls" },
      runs.length > 1 && h("span", { class: "legend runs", role: "group", "aria-label": "Runs" }, runs),
      h("label", { for: "smoothing" }, "Smoothing"), slider),
    page.runs.filter((run) => run.history.every > 1).map((run) => (
      h("p", { class: "note" }, `${run.name}: ${integer(run.done)} steps; each point is the mean of ${run.history.every} steps.`))),
    view,
  ];
}

function panelGroups(page) {
  if (!page.panels.length) return [h("p", { class: "note" }, "There are no metrics yet.")];
  return [...new Set(page.panels.map((panel) => panel.group))].map((title) => {
    const panels = page.panels.filter((panel) => panel.group === title);
    const inside = h("div", { class: "panels" });
    const draw = () => inside.replaceChildren(...panels.flatMap((panel) => drawPanel(page, panel)));
    if (!panels[0].folded) {
      draw();
      return h("section", {}, h("h2", {}, title), inside);
    }
    if (curveState.open) draw();
    const opened = (event) => {
      curveState.open = event.target.open;
      if (curveState.open) draw();
    };
    return h("details", { class: "others", open: curveState.open, ontoggle: opened }, h("summary", {}, `${title} (${panels.length})`), inside);
  });
}

function drawPanel(page, panel) {
  const several = page.runs.length > 1;
  const runs = [...page.runs.entries()].filter(([i]) => !curveState.hidden.has(i));
  if (panel.form === "stack") return runs.map(([, run]) => stackPanel(panel, run, several)).filter(Boolean);
  const evaluated = panel.source === "evaluations";
  const lines = runs.flatMap(([number, run]) => {
    const { steps, columns } = evaluated ? run.evaluations : run.history;
    return [...panel.series.entries()].filter(([, [name]]) => columns[name]).map(([dash, [name, label]]) => (
      { run: number, color: several ? number : dash, name: run.name, series: name, label, dash, steps, values: columns[name] }));
  });
  if (!curveState.off.has(panel.title)) curveState.off.set(panel.title, new Set(panel.off)); // survives a redraw
  return lines.length ? [linePanel(panel, lines, evaluated ? 0 : curveState.smoothing, curveState.off.get(panel.title))] : [];
}

/** A run's parts of a whole, with the rest of `timing/step_total` as the last part; at most `MOST_BARS` bars, each a mean. */
function stackPanel(panel, run, several) {
  const { steps, columns } = run.history;
  const parts = panel.series.filter(([name]) => columns[name]).map(([name, label], i) => ({ label, kind: `k${i}`, values: columns[name] }));
  if (!parts.length) return null;
  const total = columns["timing/step_total"] || [];
  const rest = total.map((value, i) => Math.max((value || 0) - sum(parts.map((part) => part.values[i] || 0)), 0));
  if (rest.some((value, i) => value > 0.01 * (total[i] || 0))) parts.push({ label: "other", kind: "noise", values: rest });
  const every = Math.ceil(steps.length / MOST_BARS);
  const starts = steps.map((_, i) => i).filter((i) => i % every === 0);
  const mean = (values) => (values.length ? sum(values) / values.length : 0);
  const layers = parts.map((part) => ({ ...part, values: starts.map((i) => mean(part.values.slice(i, i + every).filter((value) => value !== null))) }));
  const ends = starts.map((i) => steps[Math.min(i + every, steps.length) - 1]);
  return h("figure", { class: "panel" }, h("figcaption", {}, h("h4", {}, several ? `${panel.title}: ${run.name}` : panel.title),
    every > 1 && h("p", { class: "hint" }, `Each bar is the mean of ${every} points.`)), stackedBars(panel.title, ends, layers, panel.unit));
}
