// The first page: kinds of errors across prompts, how they changed, examples, and the way down to their clusters.

const THEMES_AT_FIRST = 10;
const EXAMPLES_SHOWN = 3;
const ORDERS = [["size", "largest"], ["down", "shrank most"], ["up", "grew most"]];

function themesView(page) {
  const { names } = page.themes;
  const runs = page.errors.filter((errors) => errors?.themes);
  const several = runs.length > 1;
  const list = h("div", { class: "themes" });
  const latest = runs[runs.length - 1].themes;
  const moved = (theme) => latest.change[theme]?.[0] ?? 0;
  let [order, most] = ["size", THEMES_AT_FIRST];
  const draw = () => {
    const places = names.map((_, theme) => theme);
    if (order !== "size") places.sort((a, b) => (order === "down" ? 1 : -1) * (moved(a) - moved(b)));
    list.replaceChildren(...places.slice(0, most).map((theme, i) => themeCard(page, theme, runs, i === 0)));
  };
  draw();
  return [
    h("h1", {}, several ? "What the runs keep getting wrong" : "What the policy keeps getting wrong"),
    runs.map((errors) => themesInWords(page, errors, several)),
    h("p", { class: "hint" }, page.themes.model
      ? `The model ${page.themes.model} described each cluster of similar wrong responses to a prompt, merged the descriptions into themes and named these. `
      : ["A theme joins clusters, which are similar wrong responses to one prompt, over all prompts. Its name is the place where most of its responses first depart from right ones, marked in the examples: ",
        ["given", "right", "wrong"].map((word, i) => [h("code", {}, word), [" is a number of the prompt, ", " one in a right response to it, ", " one in neither. "][i]])],
      "A rollout is penalized if the memory of earlier wrong responses has many like it: it loses part of its reward. ",
      `Shares are of all rollouts; the change is the mean over prompts ${several ? `from ${page.runs[runs[0].run].name} to the other run` : `from ${periodInWords(latest, 0)} to ${periodInWords(latest, 1)}`}, with a 95% interval, so the two can differ.`),
    h("div", { class: "controls" }, choice("Order", ORDERS, order, (value) => {
      order = value;
      draw();
    })),
    list,
    names.length > THEMES_AT_FIRST && h("button", {
      type: "button", class: "plain", onclick: (event) => {
        event.currentTarget.remove();
        most = names.length;
        draw();
      },
    }, `Show all ${names.length} themes`),
  ];
}

/** The number of periods in a fifth of them. */
const fifth = (periods) => Math.max(Math.floor(periods.length / 5), 1);

/** Counts of the first and of the last fifth of the periods. */
function startAndEnd(values) {
  const part = fifth(values);
  return [sum(values.slice(0, part)), sum(values.slice(-part))];
}

/** The first or the last fifth of the steps, in words. */
function periodInWords({ ends }, which) {
  const part = fifth(ends);
  const first = which ? (ends[ends.length - part - 1] ?? 0) + 1 : 1;
  return stepsInWords(first, which ? ends[ends.length - 1] : ends[part - 1]);
}

/** Shares of `of` at the start and at the end, as in "24% → 11%"; null where `of` is 0. */
function fromTo(rows, of) {
  const all = startAndEnd(of);
  if (!all[0] || !all[1]) return null;
  return startAndEnd(rows).map((n, i) => percent(n / all[i])).join(" → ");
}

function themesInWords(page, errors, several) {
  const { wrong, all, rows } = errors.themes;
  const share = fromTo(wrong, all);
  return h("p", { class: "lead" }, several && [h("i", { class: `swatch c${errors.run % 8}` }), `${page.runs[errors.run].name}: `],
    `${count(sum(wrong), "wrong rollout")} of ${count(errors.totals.prompts, "prompt")}; ${percent(sum(rows.flat()) / sum(wrong))} of them are in a theme, the others resemble too few. `,
    share && ["Wrong, of all rollouts, in the first and the last fifth of the steps: ", h("b", {}, share), "."]);
}

function themeCard(page, theme, runs, isOpen) {
  const body = h("div", {});
  const fillBody = () => body.firstChild || body.append(...themeExamples(page, theme, runs));
  const card = h("details", { class: "panel theme", open: isOpen, ontoggle: () => card.open && fillBody() },
    h("summary", {}, h("code", { class: "name" }, page.themes.names[theme]),
      h("span", { class: "lines" }, runs.map((errors, i) => themeLine(errors, theme, runs.length > 1, i === 0)))),
    body);
  if (isOpen) fillBody();
  return card;
}

/** A run's line in the card of a theme. */
function themeLine({ themes, run }, theme, several, isFirst) {
  const { rows, wrong, all, prompts, penalized, penalty } = themes;
  const size = sum(rows[theme]);
  const per = rows[theme].map((n, i) => (1000 * n) / (all[i] || wrong[i] || 1));
  const ofAll = fromTo(rows[theme], all);
  const [, end] = startAndEnd(rows[theme]);
  return h("span", { class: "line-of" }, several && h("i", { class: `swatch c${run % 8}` }),
    sparkline(per, `c${run % 8}`, `share of the rollouts over the steps, at most ${percent(Math.max(...per) / 1000)}`),
    h("span", { class: "change" }, ofAll && [h("b", {}, ofAll), " of all rollouts"], h("small", {}, `${fromTo(rows[theme], wrong) ?? "–"} of the wrong`)),
    several && isFirst ? h("span", { class: "move faint" }, "compared with") : changeInWords(themes.change[theme], several),
    size ? h("span", { class: `fate ${end ? "alive" : "died"}`, title: `in ${periodInWords(themes, 1)}` }, end ? "● still there" : "○ gone") : h("span", { class: "fate died" }, "none"),
    h("span", { class: "faint" }, `${count(size, "rollout")} of ${count(prompts[theme], "prompt")}`,
      penalized[theme] > 0 && `, ${percent(penalized[theme] / size)} penalized, by ${(penalty[theme] / penalized[theme]).toFixed(2)} on average`));
}

/** A change with its interval, and in a word what it says. */
function changeInWords(change, several) {
  if (!change) return h("span", { class: "move faint" }, several ? "no prompt in both" : "no prompt at both ends");
  const points = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(100 * value).toFixed(1)}`;
  const [middle, low, high] = change;
  const [word, kind] = high < 0 ? [several ? "fewer" : "shrank", "better"] : low > 0 ? [several ? "more" : "grew", "worse"] : ["no clear change", "faint"];
  return h("span", { class: `move ${kind}` }, `${word}: ${points(middle)} points`, h("small", {}, `${points(low)} to ${points(high)}`));
}

/** Examples of different prompts, with the place where each departs from right responses marked, and links to all clusters. */
function themeExamples(page, theme, runs) {
  const chosen = new Map();
  for (const errors of runs) {
    for (const example of errors.themes.examples[theme]) {
      const prompt = errors.prompt(example.prompt);
      if (chosen.size < EXAMPLES_SHOWN && !chosen.has(prompt.key)) chosen.set(prompt.key, [errors, prompt, example]);
    }
  }
  const all = (errors) => errors.themes.of.filter((one) => one === theme).length;
  return [
    h("div", { class: "examples three" }, [...chosen.values()].map(([errors, prompt, { label, s: step, i, p: [before, at, after] }]) => h("section", {},
      h("p", { class: "asked" }, h("a", { href: route({ prompt: prompt.key, run: errors.run, cluster: label }) }, short(prompt.text, 300))),
      prompt.right !== null && h("p", {}, "Right answer: ", h("code", {}, short(prompt.right, 120))),
      h("article", { class: "response wrong" }, h("header", {}, `step ${integer(step)}, rollout ${integer(i)}`),
        h("div", { class: "body", tabindex: 0 }, before, h("strong", { class: "answer" }, at), after))))),
    h("p", {}, runs.filter(all).map((errors) => [h("a", { href: route({ atlas: "", run: errors.run, theme }) },
      `All ${count(all(errors), "cluster")} of this theme${runs.length > 1 ? ` in ${page.runs[errors.run].name}` : ""} →`), " "])),
  ];
}
