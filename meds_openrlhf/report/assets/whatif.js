// What each run does to itself, and how far each method would have moved the advantages of its rollouts.

const METHOD_COLUMNS = [["amplitude", "Amplitude"], ["mixed", "In mixed groups"], ["cosine", "Cosine"], ["seen_before", "On errors seen before"], ["solved", "On solved prompts"]];

/** The first sentence about each run, for the top of the page. */
function verdicts(page) {
  const runs = page.runs.filter((run) => run.whatif);
  return runs.map(({ name, whatif }) => h("p", { class: "note verdict" }, runs.length > 1 && h("strong", {}, `${name}: `), whatif.sentences[0]));
}

function whatifSections(page) {
  const runs = page.runs.filter((run) => run.whatif);
  if (!runs.length) return [];
  return h("section", { id: "whatif" }, h("h2", {}, "What would change it"),
    h("p", { class: "hint" }, `How far each method would have moved the advantages of the logged rollouts, against rewards normalized within their group. Below an amplitude of ${runs[0].whatif.nothing} a method changes nothing here; mixed groups, with right and wrong responses, are all that dynamic filtering leaves. That it moves them far does not say that it helps.`),
    runs.map(({ name, whatif }) => [
      runs.length > 1 && h("h3", {}, name),
      h("ul", {}, whatif.sentences.map((sentence) => h("li", {}, sentence))),
      h("div", { class: "scroll" }, h("table", { class: "grid" },
        h("thead", {}, h("tr", {}, ["Method", ...METHOD_COLUMNS.map(([, title]) => title), "What it does"].map((title, i) => h("th", { scope: "col", class: i && i <= METHOD_COLUMNS.length ? "num" : null }, title)))),
        h("tbody", {}, whatif.methods.map((method) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, method.name)),
          METHOD_COLUMNS.map(([column], i) => h("td", { class: "num" }, method[column] === null ? "–" : i < 3 ? method[column].toFixed(2) : figure(method[column], "share"))),
          h("td", {}, method.changes_nothing && h("span", { class: "badge" }, "changes nothing here"), ` ${method.words}`)))))),
    ]));
}
