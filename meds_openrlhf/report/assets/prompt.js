// A prompt: its clusters side by side, its rollouts over time, and the details of the selected cluster.

const COLORS = 7;
const ANSWERS = 12; // of a cluster, the most frequent ones

const clusterKind = (cluster) => (cluster.label < COLORS ? `k${cluster.label}` : "more");

async function promptView(page, params) {
  const errors = page.errors[listState.run];
  const place = errors.place.get(params.get("prompt"));
  const back = h("p", {}, h("a", { href: route(listRoute()) }, "← all errors"));
  if (place === undefined) return [back, h("h1", {}, "No such prompt"), h("p", { class: "note" }, `This report has no page of the prompt “${params.get("prompt")}”.`)];
  const prompt = errors.prompt(place);
  const selected = prompt.clusters[Number(params.get("cluster") ?? 0)];
  const details = (await errors.details())[place]; // of the biggest clusters alone
  return [
    back,
    h("h1", { class: "visually-hidden" }, `Prompt ${prompt.key}`),
    h("div", { class: "question" }, h("div", { class: "asked" }, rendered([[0, prompt.text]], listState.query.toLowerCase())), prompt.text !== prompt.key && h("p", { class: "keyname" }, prompt.key)),
    promptFacts(prompt),
    h("section", {}, h("h2", {}, "Rollouts over the steps"), visitsChart(prompt)),
    h("section", {}, h("h2", {}, count(prompt.clusters.length, "cluster"), h("small", {}, ` and ${count(sum(prompt.noise), "rollout")} in none`)),
      h("div", { class: "clusters" }, prompt.clusters.map((cluster) => clusterCard(errors, prompt, cluster, cluster === selected, details)))),
    selected && clusterDetail(errors, prompt, selected, details),
    details?.right.length > 0 && h("section", {}, h("h2", {}, "A right response"), h("div", { class: "examples" }, response(details.right[0], "rightly"))),
  ];
}

const stepsInWords = (first, last) => (first === last ? `step ${integer(first)}` : `steps ${integer(first)} to ${integer(last)}`);

function promptFacts(prompt) {
  const rollouts = sum(prompt.rollouts);
  const right = sum(prompt.correct);
  const facts = [
    ["Right answer", prompt.right === null ? "not known" : rightAnswer(prompt)],
    ["Visits", `${integer(prompt.visits.length)}, ${stepsInWords(prompt.visits[0], prompt.visits[prompt.visits.length - 1])}`],
    ["Remembered rollouts", integer(prompt.labels.length)],
    rollouts && ["Right", `${integer(right)} of ${integer(rollouts)} (${percent(right / rollouts)})`],
  ].filter(Boolean);
  return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A bar for each visit with its right rollouts, clusters, noise and the rest. */
function visitsChart(prompt) {
  const { visits, clusters, noise, rollouts, correct, rows } = prompt;
  const more = clusters.slice(COLORS);
  const layers = [
    ...clusters.slice(0, COLORS).map((cluster) => ({ label: `cluster ${cluster.label}${cluster.right ? " (right)" : ""}`, kind: clusterKind(cluster), values: cluster.growth })),
    { label: `clusters ${COLORS} to ${clusters.length - 1}`, kind: "more", values: visits.map((_, i) => sum(more.map((one) => one.growth[i]))) },
    { label: "in no cluster", kind: "noise", values: noise },
    { label: "wrong, not remembered", kind: "rest", values: rollouts.map((n, i) => Math.max(n - correct[i] - rows.wrong[i], 0)) },
    { label: "right", kind: "right", values: correct.map((n, i) => Math.max(n - rows.right[i], 0)) },
  ].filter((layer) => layer.values.some(Boolean));
  return h("figure", { class: "panel wide" }, stackedBars("Rollouts", visits, layers, "", { width: drawnWidth(860), height: 260 }));
}

function clusterCard(errors, prompt, cluster, current, details) {
  const example = details?.clusters[cluster.label]?.examples[0];
  const kind = clusterKind(cluster);
  return h("a", { class: `cluster ${kind}`, href: route({ prompt: prompt.key, run: errors.run, cluster: cluster.label }), "aria-current": current ? "true" : null },
    h("b", {}, h("i", { class: `swatch ${kind}` }), `Cluster ${cluster.label}`, cluster.right && h("span", { class: "badge" }, "right")),
    h("span", { class: "big" }, integer(cluster.size), h("small", {}, ` ${percent(cluster.share)} of the ${cluster.right ? "right" : "wrong"}`)),
    sparkline(cluster.growth, kind, "members in each visit"),
    h("span", { class: "faint" }, stepsInWords(cluster.first, cluster.last)), fate(cluster), answerChips(cluster, ""),
    example && h("p", { class: "snippet" }, short(plainText(example).slice(-220), 220)));
}

function clusterDetail(errors, prompt, cluster, details) {
  const own = details?.clusters[cluster.label];
  const note = (text) => h("p", { class: "note" }, text);
  let total = 0;
  const layers = [
    { label: "members before", kind: "before", values: cluster.growth.map((n) => (total += n) - n) },
    { label: "new members", kind: clusterKind(cluster), values: cluster.growth },
  ];
  return h("section", { class: `detail ${clusterKind(cluster)}`, id: "cluster" },
    h("h2", {}, h("i", { class: `swatch ${clusterKind(cluster)}` }), `Cluster ${cluster.label}`, h("small", {}, ` ${count(cluster.size, "rollout")}, ${stepsInWords(cluster.first, cluster.last)}`), " ", fate(cluster)),
    h("div", { class: "twin" },
      h("figure", { class: "panel" }, h("figcaption", {}, h("h3", {}, "Growth")), stackedBars("Growth", prompt.visits, layers, "", { width: drawnWidth(560), height: 200 })),
      h("div", { class: "panel" }, h("h3", {}, "Answers"), answerBars(cluster))),
    h("div", {}, own
      ? [examplesOf(own, errors), own.heatmap ? heatmap(errors, prompt, cluster, own.heatmap) : note("Rows of this run are final answers, which have no layer logits.")]
      : note(`This report has example responses and heatmaps of the ${integer(errors.detailed)} biggest of ${integer(errors.totals.clusters)} clusters; this is not one of them.`)));
}

function answerBars({ answers, unknown, size }) {
  if (!answers.length) return h("p", { class: "note" }, "The answers of these rollouts are not in the log.");
  const rest = answers.slice(ANSWERS);
  const rows = [
    ...answers.slice(0, ANSWERS).map(([answer, n]) => [h("code", {}, short(answer, 60)), n]),
    [`${rest.length} other answers`, sum(rest.map(([, n]) => n))], ["not in the log", unknown],
  ].filter(([, n]) => n);
  return h("table", { class: "answers" }, h("tbody", {}, rows.map(([answer, n]) => h("tr", {}, h("td", {}, answer), h("td", { class: "num" }, integer(n)),
    h("td", { class: "meter" }, shareBar(n / size))))));
}

function shareBar(part) {
  const bar = h("div", { class: "share", role: "img", "aria-label": percent(part) });
  bar.style.width = `${100 * part}%`; // the page's policy allows no attribute of style
  return bar;
}

function examplesOf(own, errors) {
  const why = errors.totals.rollouts ? "The log kept the text of none of these responses." : "The run has no rollout log, so there are no responses.";
  return h("section", {}, h("h3", {}, "Example responses"),
    own.examples.length ? h("div", { class: "examples" }, own.examples.map((one) => response(one, "wrong"))) : h("p", { class: "note" }, why));
}

/** A response with its answer marked. */
function response(example, verdict) {
  const query = listState.query.toLowerCase();
  const body = h("div", { class: "body", tabindex: 0 }, rendered(example.p, query));
  const change = (source) => {
    body.replaceChildren(...(source ? asWritten : rendered)(example.p, query));
    showAnswers(body.parentElement);
  };
  return h("article", { class: `response ${verdict}` },
    h("header", {}, `step ${integer(example.s)}, rollout ${integer(example.i)}`, toggle("source", false, change)), body);
}

/** Scroll each long response to its answer, which is usually at the end. */
function showAnswers(view) {
  for (const body of view.querySelectorAll(".response .body")) {
    const answer = body.querySelector(".answer");
    if (answer) body.scrollTop += answer.getBoundingClientRect().top - body.getBoundingClientRect().top - body.clientHeight + 60;
  }
}
