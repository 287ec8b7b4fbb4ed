// A prompt: its clusters side by side, its rollouts over time, and the details of the selected cluster.

const COLORS = 7;

function clusterKind(cluster) {
  return cluster.label < COLORS ? `k${cluster.label}` : "more";
}

function promptView(page, params) {
  const errors = page.errors[listState.run];
  const place = errors.place.get(params.get("prompt"));
  const back = h("p", {}, h("a", { href: route(listRoute()) }, "← all errors"));
  if (place === undefined) return [back, h("h1", {}, "No such prompt"), h("p", { class: "note" }, `This report has no page of the prompt “${params.get("prompt")}”.`)];
  const prompt = errors.prompt(place);
  const given = params.get("cluster");
  const selected = prompt.clusters[given === null ? 0 : Number(given)] || null;
  const details = errors.details(place);
  return [
    back,
    h("h1", { class: "visually-hidden" }, `Prompt ${prompt.key}`),
    h("div", { class: "question" }, h("p", { class: "asked" }, prompt.text), prompt.text !== prompt.key && h("p", { class: "keyname" }, prompt.key)),
    promptFacts(prompt),
    h("section", {}, h("h2", {}, "Rollouts over the steps"), visitsChart(prompt)),
    h("section", {}, h("h2", {}, count(prompt.clusters.length, "cluster"), h("small", {}, noiseInWords(prompt))),
      clusterCards(errors, prompt, selected, details)),
    selected && clusterDetail(errors, prompt, selected, details),
    rightResponse(details),
  ];
}

const stepsInWords = (first, last) => (first === last ? `step ${integer(first)}` : `steps ${integer(first)} to ${integer(last)}`);

function noiseInWords(prompt) {
  const noise = sum(prompt.noise.wrong) + sum(prompt.noise.right);
  return ` and ${count(noise, "rollout")} in none`;
}

function promptFacts(prompt) {
  const rollouts = sum(prompt.rollouts);
  const facts = [
    ["Right answer", prompt.right === null ? "not known" : h("code", {}, short(prompt.right, 120))],
    ["Visits", `${integer(prompt.visits.length)}, ${stepsInWords(prompt.visits[0], prompt.visits[prompt.visits.length - 1])}`],
    ["Remembered rollouts", integer(prompt.labels.length)],
    rollouts && ["Right", `${integer(sum(prompt.correct))} of ${integer(rollouts)} (${percent(sum(prompt.correct) / rollouts)})`],
  ].filter(Boolean);
  return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A bar for each visit with its right rollouts, clusters, noise and the rest. */
function visitsChart(prompt) {
  const layers = [];
  const remembered = prompt.visits.map(() => 0);
  const rightRows = prompt.visits.map(() => 0);
  prompt.labels.forEach((_, row) => {
    const visit = prompt.column.get(prompt.steps[row]);
    (row >= prompt.firstRight ? rightRows : remembered)[visit] += 1;
  });
  for (const cluster of prompt.clusters.slice(0, COLORS)) {
    layers.push({ label: `cluster ${cluster.label}${cluster.right ? " (right)" : ""}`, kind: clusterKind(cluster), values: cluster.growth });
  }
  const more = prompt.clusters.slice(COLORS);
  if (more.length) layers.push({ label: `clusters ${COLORS} to ${prompt.clusters.length - 1}`, kind: "more", values: prompt.visits.map((_, i) => sum(more.map((one) => one.growth[i]))) });
  layers.push({ label: "in no cluster", kind: "noise", values: prompt.visits.map((_, i) => prompt.noise.wrong[i] + prompt.noise.right[i]) });
  layers.push({ label: "wrong, not remembered", kind: "rest", values: prompt.rollouts.map((n, i) => Math.max(n - prompt.correct[i] - remembered[i], 0)) });
  layers.push({ label: "right", kind: "right", values: prompt.correct.map((n, i) => Math.max(n - rightRows[i], 0)) });
  const shown = layers.filter((layer) => layer.values.some(Boolean));
  return h("figure", { class: "panel wide" }, stackedBars("Rollouts", prompt.visits, shown, "", { width: drawnWidth(860), height: 260 }));
}

function clusterCards(errors, prompt, selected, details) {
  return h("div", { class: "clusters" }, prompt.clusters.map((cluster) => {
    const snippet = h("p", { class: "snippet" });
    details.then((found) => {
      const example = found?.clusters[cluster.label]?.examples[0];
      if (example) snippet.textContent = short(plainText(example).slice(-220), 220);
    });
    const current = cluster === selected;
    return h("a", { class: `cluster ${clusterKind(cluster)}`, href: route({ prompt: prompt.key, run: errors.run, cluster: cluster.label }), "aria-current": current ? "true" : null },
      h("b", {}, h("i", { class: `swatch ${clusterKind(cluster)}` }), `Cluster ${cluster.label}`, cluster.right && h("span", { class: "badge" }, "right")),
      h("span", { class: "big" }, integer(cluster.size), h("small", {}, ` ${percent(cluster.share)} of the ${cluster.right ? "right" : "wrong"}`)),
      sparkline(cluster.growth, clusterKind(cluster), "members in each visit"),
      h("span", { class: "faint" }, stepsInWords(cluster.first, cluster.last)), fate(cluster), answerChips(cluster, ""), snippet);
  }));
}

function clusterDetail(errors, prompt, cluster, details) {
  const holder = h("div", {}, h("p", { class: "hint" }, "Unpacking …"));
  details.then((found) => {
    const own = found?.clusters[cluster.label];
    holder.replaceChildren(...(own ? [examplesOf(own, errors), own.heatmap && heatmap(errors, prompt, cluster, own.heatmap)].filter(Boolean) : [noDetails(errors)]));
    showAnswers(holder);
    if (own && !own.heatmap) holder.append(h("p", { class: "note" }, "Rows of this run are final answers, which have no layer logits."));
  });
  let total = 0;
  const growth = cluster.growth.map((n) => (total += n));
  const layers = [{ label: "new members", kind: clusterKind(cluster), values: cluster.growth }];
  const before = { label: "members before", kind: "before", values: growth.map((n, i) => n - cluster.growth[i]) };
  return h("section", { class: `detail ${clusterKind(cluster)}`, id: "cluster" },
    h("h2", {}, h("i", { class: `swatch ${clusterKind(cluster)}` }), `Cluster ${cluster.label}`, h("small", {}, ` ${count(cluster.size, "rollout")}, ${stepsInWords(cluster.first, cluster.last)}`), " ", fate(cluster)),
    h("div", { class: "twin" },
      h("figure", { class: "panel" }, h("figcaption", {}, h("h3", {}, "Growth")), stackedBars("Growth", prompt.visits, [before, ...layers], "", { width: drawnWidth(560), height: 200 })),
      h("div", { class: "panel" }, h("h3", {}, "Answers"), answerBars(cluster))),
    holder);
}

function answerBars(cluster) {
  const shown = cluster.answers.slice(0, 12);
  const rest = sum(cluster.answers.slice(12).map(([, n]) => n));
  if (!shown.length) return h("p", { class: "note" }, "The answers of these rollouts are not in the log.");
  const rows = [...shown.map(([answer, n]) => [h("code", {}, short(answer, 60)), n])];
  if (rest) rows.push([`${cluster.answers.length - 12} other answers`, rest]);
  if (cluster.unknown) rows.push(["not in the log", cluster.unknown]);
  return h("table", { class: "answers" }, h("tbody", {}, rows.map(([answer, n]) => h("tr", {}, h("td", {}, answer), h("td", { class: "num" }, integer(n)),
    h("td", { class: "meter" }, shareBar(n / cluster.size))))));
}

function shareBar(part) {
  const bar = h("div", { class: "share", role: "img", "aria-label": percent(part) });
  bar.style.width = `${100 * part}%`;
  return bar;
}

function noDetails(errors) {
  return h("p", { class: "note" }, `This report has example responses and heatmaps of the ${integer(errors.detailed)} biggest of ${integer(errors.totals.clusters)} clusters; this is not one of them.`);
}

function examplesOf(own, errors) {
  const why = errors.totals.rollouts ? "The log kept the text of none of these responses." : "The run has no log of rollouts, so there are no responses.";
  return h("section", {}, h("h3", {}, "Example responses"),
    own.examples.length ? h("div", { class: "examples" }, own.examples.map((one) => response(one, "wrong"))) : h("p", { class: "note" }, why));
}

/** A response with its answer marked. */
function response(example, verdict) {
  const query = listState.query.trim().toLowerCase();
  return h("article", { class: `response ${verdict}` },
    h("header", {}, `step ${integer(example.s)}, rollout ${integer(example.i)}`),
    h("div", { class: "body", tabindex: 0 }, example.p.map(([kind, text]) => {
      if (kind === 1) return h("strong", { class: "answer" }, text);
      return kind === 2 ? h("span", { class: "cut" }, `… ${count(text, "character")} left out …`) : marked(text, query);
    })));
}

/** Scroll each long response to its answer, which is usually at the end. */
function showAnswers(holder) {
  requestAnimationFrame(() => {
    for (const answer of holder.querySelectorAll(".body .answer")) {
      const body = answer.closest(".body");
      body.scrollTop = answer.offsetTop - body.offsetTop - body.clientHeight + 60;
    }
  });
}

function rightResponse(details) {
  const section = h("section", { hidden: true });
  details.then((found) => {
    if (!found?.right.length) return;
    section.hidden = false;
    section.append(h("h2", {}, "A right response"), h("div", { class: "examples" }, found.right.map((one) => response(one, "rightly"))));
    showAnswers(section);
  });
  return section;
}
