// The first page: kinds of errors across prompts, how they changed, examples, and the way down to their clusters.

function errorsView(page) {
  const several = page.errors.filter(Boolean).length > 1;
  return [h("h1", {}, several ? "What the runs keep getting wrong" : "What the policy keeps getting wrong"), verdicts(page), gradingsView(page), page.themes ? themesSection(page)
    : h("p", { class: "note" }, "The log has no text of an error that recurs, so there are no themes. The atlas lists all clusters.")];
}

function themesSection(page) {
  const runs = page.errors.filter((errors) => errors?.themes);
  const several = runs.length > 1;
  const latest = runs[runs.length - 1].themes;
  const moved = (theme) => latest.change[theme]?.[0] ?? 0;
  const places = page.themes.names.map((_, theme) => theme); // the largest first
  if (several) places.sort((a, b) => moved(a) - moved(b)); // what the last run lost comes first
  return [
    h("h2", {}, "Kinds of errors"),
    runs.map((errors) => themesInWords(page, errors, several)),
    h("p", { class: "hint" }, page.themes.model
      ? `The model ${page.themes.model} described each cluster of similar wrong responses to a prompt, merged the descriptions into themes and named these. `
      : ["A theme joins clusters, which are similar wrong responses to one prompt, over all prompts. The examples mark where each goes wrong: at its first calculation that is false, or whose result no right response has. The name says what was done there and shows the calculation; without one, it has the words that tell the theme. A number behind a name tells themes of one name apart. In a calculation, ",
        ["given", "right", "wrong"].map((word, i) => [h("code", {}, word), [" is a number of the prompt, ", " one in a right response to it or the label, ", " one in neither. "][i]])],
      "A rollout is penalized if the memory of earlier wrong responses has many like it: it loses part of its reward. ",
      `Shares count rollouts. The change counts prompts, each once, so it can differ from what the shares did: it is their mean ${several ? `from ${page.runs[runs[0].run].name} to ${runs.length > 2 ? "each of the others" : "the other run"}` : `from ${periodInWords(latest, 0)} to ${periodInWords(latest, 1)}`}, with an interval that holds for all themes of the page at once in ${percent(page.themes.level)} of cases.${several ? " Themes are sorted by the change." : ""}`,
      page.runs.some((run) => run.filtered) && ` ${FILTERED}: a solved prompt is in none of these figures and does not lower them.`),
    h("div", { class: "themes" }, places.map((theme, place) => themeCard(page, theme, runs, place === 0))),
  ];
}

/** Counts of a run's start and of its end, which are `part` of the periods each. */
const startAndEnd = (values, { part }) => [sum(values.slice(0, part)), sum(values.slice(-part))];

/** A run's start or its end, in words. */
function periodInWords({ ends, part }, which) {
  return which ? stepsInWords((ends[ends.length - part - 1] ?? 0) + 1, ends[ends.length - 1]) : stepsInWords(1, ends[part - 1]);
}

/** Shares of `of` at the start and at the end, as in "24% → 11%". */
function fromTo(rows, of, themes) {
  const all = startAndEnd(of, themes);
  return startAndEnd(rows, themes).slice(of.length > 1 ? 0 : 1).map((n, i) => percent(n / (all[i] || 1))).join(" → ");
}

function themesInWords(page, { run, themes }, several) {
  const { wrong, all, rows } = themes;
  return h("p", { class: "lead" }, several && [h("i", { class: `swatch c${run % 8}` }), `${page.runs[run].name}: `],
    `${count(sum(wrong), "wrong rollout")}; ${percent(sum(rows.flat()) / (sum(wrong) || 1))} of them are in a theme${sum(rows.flat()) < sum(wrong) ? ", the others recur too little for one" : ""}. `,
    page.gradings.doubtful > 0 && `${count(page.gradings.doubtful, "wrong rollout")} may be right (suspect grading). `,
    `Wrong, of all rollouts${all.length > 1 ? `, in ${periodInWords(themes, 0)} and in ${periodInWords(themes, 1)}` : ""}: `, h("b", {}, fromTo(wrong, all, themes)), ".");
}

function themeCard(page, theme, runs, open) {
  return h("details", { class: "panel theme", open },
    h("summary", {}, h("code", { class: "name" }, page.themes.names[theme]),
      h("span", { class: "lines" }, runs.map((errors, i) => themeLine(errors, theme, runs.length > 1, i === 0)))),
    themeExamples(page, theme, runs));
}

/** A run's line in the card of a theme. */
function themeLine({ themes, run }, theme, several, isFirst) {
  const { rows, wrong, all, prompts, penalized } = themes;
  const size = sum(rows[theme]);
  const per = rows[theme].map((n, i) => (1000 * n) / all[i]);
  const [, end] = startAndEnd(rows[theme], themes);
  return h("span", { class: "line-of" }, several && h("i", { class: `swatch c${run % 8}` }),
    all.length > 1 && sparkline(per, `c${run % 8}`, `share of the rollouts over the steps, at most ${percent(Math.max(...per) / 1000)}`),
    h("span", { class: "change" }, h("b", {}, fromTo(rows[theme], all, themes)), " of all rollouts", h("small", {}, `${fromTo(rows[theme], wrong, themes)} of the wrong`)),
    several && isFirst ? h("span", { class: "move faint" }, "compared with") : (several || all.length > 1) && changeInWords(themes.change[theme], several),
    all.length > 1 && (size ? h("span", { class: `fate ${end ? "alive" : "died"}`, title: `in ${periodInWords(themes, 1)}` }, end ? "● still there" : "○ gone") : h("span", { class: "fate died" }, "none")),
    h("span", { class: "faint" }, `${count(size, "rollout")} of ${count(prompts[theme], "prompt")}`,
      penalized[theme] > 0 && `, ${percent(penalized[theme] / size)} penalized`));
}

/** A change with its interval, and in a word what it says. */
function changeInWords(change, several) {
  if (!change) return h("span", { class: "move faint" }, several ? "no prompt in both" : "no prompt at both ends");
  const points = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(100 * value).toFixed(1)}`;
  const [middle, low, high] = change;
  const [word, kind] = high < 0 ? [several ? "fewer" : "shrank", "better"] : low > 0 ? [several ? "more" : "grew", "worse"] : ["no clear change", "faint"];
  return h("span", { class: `move ${kind}` }, `${word}: ${points(middle)} points`, h("small", {}, `mean of prompts, ${points(low)} to ${points(high)}`));
}

/** Examples of different prompts, with the place where each departs from right responses marked, and links to all clusters. */
function themeExamples(page, theme, runs) {
  const chosen = new Map(); // by the prompt's key
  for (const errors of runs) {
    for (const example of errors.themes.examples[theme]) {
      const prompt = errors.prompt(example.prompt);
      if (chosen.size < page.themes.most_examples && !chosen.has(prompt.key)) chosen.set(prompt.key, [errors.run, prompt, example]);
    }
  }
  const all = (errors) => errors.themes.of.filter((one) => one === theme).length;
  return [
    h("div", { class: "examples three" }, [...chosen.values()].map(([run, prompt, example]) => h("section", {},
      h("p", { class: "asked" }, h("a", { href: route({ prompt: prompt.key, run, cluster: example.label }) }, oneLine(short(prompt.text, 300)))),
      prompt.right !== null && h("p", {}, "Right answer: ", rightAnswer(prompt)),
      response(example, "wrong")))),
    h("p", {}, runs.filter(all).map((errors) => [h("a", { href: route({ atlas: "", run: errors.run, theme }) },
      `All ${count(all(errors), "cluster")} of this theme${runs.length > 1 ? ` in ${page.runs[errors.run].name}` : ""} →`), " "])),
  ];
}
