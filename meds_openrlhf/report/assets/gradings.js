// What comes before any error: gradings that may be wrong, prompts that are never solved, and groups that teach nothing.

const FIRST = 5; // rows that are shown before the reader asks for more

function gradingsView(page) {
  const { gradings } = page;
  return gradings ? [suspectsSection(page, gradings), unsolvedSection(page, gradings), groupsSection(page)] : [];
}

function suspectsSection(page, { suspects, found, verifier, left_out: leftOut }) {
  const how = verifier ? "by their normalized spelling and by math-verify" : "by their normalized spelling (the extra that compares values, math-verify, is not installed)";
  const rows = suspects.map((suspect) => h("tr", {},
    promptCell(page, suspect), answerCell(suspect.answer, "any"), answerCell(suspect.truth, "none"), h("td", { class: "num strong" }, integer(suspect.count)), h("td", {}, suspect.why)));
  return h("section", { id: "suspects" },
    h("h2", {}, "Suspect grading", h("small", {}, ` ${count(found[0], "case")}`)),
    rows.length > 0 && h("p", { class: "hint" }, `Rollouts that were scored wrong although that may be the fault of the label or of the grader. Wrong answers were compared with their labels ${how}`, leftOut > 0 && `, except ${count(leftOut, "rarer answer")}`, "; an answer that nearly all rollouts of a prompt give is suspect, too."),
    rows.length ? longTable(["Prompt", "Scored wrong", "Label", "Rollouts", "Why suspect"], rows, found[0]) : h("p", { class: "note" }, `Nothing suspect was found: wrong answers were compared with their labels ${how}.`));
}

function unsolvedSection(page, { unsolved, suspects, found, one_answer: oneAnswer }) {
  const suspect = new Set(suspects.map(({ key }) => key));
  const rows = unsolved.map((prompt) => h("tr", {},
    promptCell(page, prompt, suspect.has(prompt.key) && h("span", { class: "badge" }, "suspect")), answerCell(prompt.answer, "no answer"), h("td", { class: "num strong" }, `${integer(prompt.count)} of ${integer(prompt.rollouts)}`),
    h("td", { class: "num" }, integer(prompt.answers)), answerCell(prompt.truth, "not known")));
  return h("section", { id: "unsolved" },
    h("h2", {}, "Never solved", h("small", {}, ` ${count(found[1], "prompt")}`)),
    found[1] > 0 && h("p", { class: "hint" }, `No logged rollout of these prompts is right. On ${integer(oneAnswer)} of them all answers are the same wrong one.`),
    rows.length ? longTable(["Prompt", "Most frequent answer", "Rollouts", "Answers", "Right answer"], rows, found[1]) : h("p", { class: "note" }, "Every logged prompt was solved at least once."));
}

/** For each step the groups that are all right, all wrong, and mixed: only mixed groups teach a policy of group-relative advantages. */
function groupsSection(page) {
  const runs = page.runs.filter((run) => run.groups);
  if (runs.every(({ groups }) => sum(groups.right) + sum(groups.wrong) === 0)) return h("p", { class: "note" }, "All logged groups are mixed: each has right and wrong rollouts.");
  return h("section", {}, h("h2", {}, "Groups by step"),
    h("p", { class: "hint" }, "Prompts whose logged rollouts of a step are all right, all wrong, or mixed. Advantages relative to a group are 0 unless it is mixed.", page.runs.some((run) => run.filtered) && ` ${FILTERED}.`),
    runs.map(({ name, groups }) => h("figure", { class: "panel wide" }, runs.length > 1 && h("figcaption", {}, name),
      stackedBars("Groups", groups.steps, [["mixed", "k0", groups.mixed], ["all wrong", "rest", groups.wrong], ["all right", "right", groups.right]].map(([label, kind, values]) => ({ label, kind, values })),
        "", { width: drawnWidth(860), height: 180 }))));
}

/** A prompt's beginning, with a link to its page in the first run that has one. */
function promptCell(page, { key, prompt }, badge) {
  const errors = page.errors.find((one) => one?.place.has(key));
  const text = oneLine(short(prompt || key, 160));
  return h("td", { class: "text" }, errors ? h("a", { href: route({ prompt: key, run: errors.run }) }, text) : text, badge);
}

const answerCell = (answer, missing) => h("td", {}, answer === null ? h("span", { class: "faint" }, missing) : rightAnswer({ right: answer }));

/** A table whose rows after the first ones are shown on demand; `all` rows were found. */
function longTable(titles, rows, all) {
  const body = h("tbody", {}, rows.slice(0, FIRST));
  const more = rows.length > FIRST && h("button", { type: "button", onclick: (event) => { body.append(...rows.slice(FIRST)); event.currentTarget.remove(); } }, `Show ${integer(rows.length)}`);
  return [
    h("div", { class: "scroll" }, h("table", { class: "grid" }, h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))), body)),
    h("p", {}, more, all > rows.length && h("span", { class: "faint" }, ` The page has the first ${integer(rows.length)} of ${integer(all)}; --json has all.`)),
  ];
}
