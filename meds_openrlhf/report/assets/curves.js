// All curves: a colour per run and a heading per group of panels; runs can be hidden and lines smoothed.

const curveState = { hidden: new Set(), off: new Map(), smoothing: 0, open: false };
const GROUP_NOTES = {
  Diversity: "Of the layer logits of wrong and of right rollouts. Step: those of one step; window: those of the last steps (50); "
    + "all: those of the run so far. Window and all are off at first; the names below a chart switch lines on and off.",
};

function curves(page) {
  const view = h("div", {});
  const draw = () => view.replaceChildren(...panelGroups(page));
  draw();
  const averaged = page.runs.filter((run) => run.history.every > 1);
  const slider = h("input", {
    type: "range", min: 0, max: 0.95, step: 0.05, value: curveState.smoothing, id: "smoothing",
    oninput: (event) => {
      curveState.smoothing = Number(event.target.value);
      draw();
    },
  });
  return [
    h("h1", {}, "Curves"),
    h("div", { class: "controls" },
      page.runs.length > 1 && h("span", { class: "legend runs", role: "group", "aria-label": "Runs" }, page.runs.map((run, i) => toggle(
        [h("i", { class: `swatch c${i % 8}` }), run.name], !curveState.hidden.has(i), (on) => {
          curveState.hidden[on ? "delete" : "add"](i);
          draw();
        }))),
      h("label", { for: "smoothing" }, "Smoothing"), slider),
    averaged.map((run) => h("p", { class: "note" }, `${run.name}: ${integer(run.done)} steps; each point is the mean of ${run.history.every} steps.`)),
    view,
  ];
}

function panelGroups(page) {
  const groups = new Map();
  for (const panel of page.panels) {
    if (!groups.has(panel.group)) groups.set(panel.group, []);
    groups.get(panel.group).push(panel);
  }
  if (!groups.size) return [h("p", { class: "note" }, "There are no metrics yet.")];
  return [...groups].map(([title, panels]) => (title === "All other metrics" ? otherPanels(page, title, panels)
    : h("section", {}, h("h2", {}, title), GROUP_NOTES[title] && h("p", { class: "note" }, GROUP_NOTES[title]),
      h("div", { class: "panels" }, panels.flatMap((panel) => drawPanel(page, panel))))));
}

function otherPanels(page, title, panels) {
  const inside = h("div", { class: "panels" });
  const details = h("details", { class: "others", open: curveState.open }, h("summary", {}, `${title} (${panels.length})`), inside);
  const draw = () => {
    curveState.open = details.open;
    if (details.open && !inside.childNodes.length) inside.append(...panels.flatMap((panel) => drawPanel(page, panel)));
  };
  details.addEventListener("toggle", draw);
  draw();
  return details;
}

function drawPanel(page, panel) {
  const runs = page.runs.map((run, i) => [run, i]).filter(([, i]) => !curveState.hidden.has(i));
  if (panel.form === "stack") return runs.map(([run]) => stackPanel(panel, run, page.runs.length > 1)).filter(Boolean);
  const lines = [];
  for (const [run, number] of runs) {
    const history = panel.source === "evaluations" ? run.evaluations : run.history;
    panel.series.forEach(([name, label], dash) => {
      if (history.columns[name]) lines.push({ run: number, color: page.runs.length > 1 ? number : dash, name: run.name, series: name, label, dash, steps: history.steps, values: history.columns[name] });
    });
  }
  return lines.length ? [new LineChart(panel, lines, panel.source === "evaluations" ? 0 : curveState.smoothing).node] : [];
}

/** A run's parts of a whole, with the rest of `timing/step_total` as the last part. */
function stackPanel(panel, run, several) {
  const { steps, columns } = run.history;
  const layers = panel.series.filter(([name]) => columns[name]).map(([name, label], i) => ({ label, kind: `k${i}`, values: columns[name] }));
  if (!layers.length) return null;
  const total = columns["timing/step_total"];
  if (total) {
    const rest = total.map((value, i) => Math.max((value || 0) - layers.reduce((sum, layer) => sum + (layer.values[i] || 0), 0), 0));
    if (rest.some((value, i) => value > 0.01 * (total[i] || 0))) layers.push({ label: "other", kind: "noise", values: rest });
  }
  const averages = bucketed(steps, layers, 150);
  return h("figure", { class: "panel" }, h("figcaption", {}, h("h4", {}, several ? `${panel.title}: ${run.name}` : panel.title),
    averages.every > 1 && h("p", { class: "hint" }, `Each bar is the mean of ${averages.every} points.`)),
    stackedBars(panel.title, averages.steps, averages.layers, panel.unit), stackLegend(layers));
}

/** At most `most` bars, each the mean of some steps. */
function bucketed(steps, layers, most) {
  const every = Math.ceil(steps.length / most);
  const starts = steps.map((_, i) => i).filter((i) => i % every === 0);
  const mean = (values) => {
    const known = values.filter((value) => value !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : 0;
  };
  return {
    every, steps: starts.map((i) => steps[Math.min(i + every, steps.length) - 1]),
    layers: layers.map((layer) => ({ ...layer, values: starts.map((i) => mean(layer.values.slice(i, i + every))) })),
  };
}
