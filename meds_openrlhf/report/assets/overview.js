// Overview: a card for each run, first and last steps, and settings side by side.

function overview(page) {
  const runs = page.runs;
  return [
    h("h1", {}, runs.length === 1 ? runs[0].name : `${runs.length} runs`),
    h("div", { class: "cards" }, runs.map((run, i) => runCard(run, i))),
    summaryTable(runs),
    whatifSections(page),
    settingsTable(page),
  ];
}

function runCard(run, number) {
  const facts = [
    ["Method", run.method],
    ["Model", run.model],
    ["Data", run.data],
    ["Steps", stepsDone(run)],
    ["Started", run.started && moment(run.started)],
    ["Last step", run.last && moment(run.last)],
    ["Time in steps", run.time],
    ["Errors", errorsInWords(run)],
    ["Folder", run.folder],
  ].filter(([, value]) => value);
  return h("section", { class: "card" },
    h("h2", {}, h("i", { class: `swatch c${number % 8}` }), run.name),
    run.planned && !run.ended && h("progress", { max: run.planned, value: run.done, "aria-label": "steps done" }),
    h("dl", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

/** The run's progress. A run that has saved its model has ended, possibly with fewer steps than planned. */
function stepsDone(run) {
  const planned = run.planned ? `${integer(run.planned)} planned` : "";
  if (!run.ended) return `${integer(run.done)}${planned && ` of ${planned}`}`;
  const fewer = run.planned > run.done ? ` (${planned}; dynamic sampling may leave steps out)` : "";
  return `ended after ${count(run.done, "step")}${fewer}`;
}

function errorsInWords(run) {
  if (!run.atlas) return "none remembered or logged";
  const totals = run.atlas.totals;
  return `${count(totals.rows, "rollout")} of ${count(totals.prompts, "prompt")} in ${count(totals.clusters, "cluster")}; ${integer(totals.noise)} in none.`;
}

function summaryTable(runs) {
  const titles = [...new Map(runs.flatMap((run) => run.summary.map(([title, , , unit]) => [title, unit])))];
  if (!titles.length) return h("p", { class: "note" }, "No step is finished yet, so there are no figures.");
  const cells = (run, title, unit) => {
    const row = run.summary.find(([name]) => name === title);
    if (!row) return [h("td", { class: "num", colspan: 3 }, "–")];
    const change = row[1] === null || row[2] === null ? null : row[2] - row[1];
    const sign = change > 0 ? "+" : change < 0 ? "−" : "±";
    return [
      h("td", { class: "num" }, figure(row[1], unit)), h("td", { class: "num strong" }, figure(row[2], unit)),
      h("td", { class: "num faint" }, change === null ? "" : `${sign}${figure(Math.abs(change), unit)}`),
    ];
  };
  return h("section", {}, h("h2", {}, "First and last steps"), h("p", { class: "hint" }, "Means of the first 5 and of the last 5 steps."),
    h("div", { class: "scroll" }, h("table", { class: "grid" },
      h("thead", {},
        runs.length > 1 && h("tr", {}, h("td", {}), runs.map((run, i) => h("th", { colspan: 3, scope: "colgroup" }, h("i", { class: `swatch c${i % 8}` }), run.name))),
        h("tr", {}, h("td", {}), runs.map(() => ["first", "last", "change"].map((name) => h("th", { class: "num", scope: "col" }, name))))),
      h("tbody", {}, titles.map(([title, unit]) => h("tr", {}, h("th", { scope: "row" }, title), runs.map((run) => cells(run, title, unit))))))));
}

function settingsTable(page) {
  const several = page.runs.length > 1;
  const body = h("tbody", {});
  let all = false;
  const differing = page.settings.filter((row) => row.differs).length;
  const draw = () => body.replaceChildren(...page.settings.filter((row) => all || row.key || row.differs).map((row) => h("tr",
    { class: row.differs ? "differs" : null },
    h("th", { scope: "row" }, h("code", {}, row.name), row.differs && h("span", { class: "badge" }, "differs")),
    row.values.map((value) => h("td", {}, value === null ? h("span", { class: "faint" }, "not set") : value)))));
  draw();
  if (!page.settings.length) return h("p", { class: "note" }, "The folder has no config.yaml.");
  return h("section", {}, h("h2", {}, "Settings"),
    several && h("p", { class: "hint" }, differing ? `${differing} of ${page.settings.length} settings differ between the runs.` : "The runs have the same settings."),
    h("p", {}, toggle(`Show all ${page.settings.length} settings`, false, (on) => {
      all = on;
      draw();
    })),
    h("div", { class: "scroll" }, h("table", { class: "grid settings" },
      several && h("thead", {}, h("tr", {}, h("td", {}), page.runs.map((run, i) => h("th", { scope: "col" }, h("i", { class: `swatch c${i % 8}` }), run.name)))), body)));
}

function moment(iso) {
  return new Date(iso).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}
