// The list of all recurring errors, with sorting, search and pages.

const ROWS = 25;
const COLLATOR = new Intl.Collator("en", { numeric: true });
const WHICH = [["all", "all"], ["alive", "alive"], ["died", "died"]];
const VERDICTS = [["all", "right and wrong"], ["wrong", "wrong"], ["right", "right"]];
const COLUMNS = [
  ["prompt", "Prompt", "text"], ["size", "Size", "num"], ["share", "Share", "num"], ["first", "First", "num wide-only"],
  ["last", "Last", "num wide-only"], [null, "Growth", ""], ["since", "Now", ""], [null, "Most frequent answers", ""], [null, "Right", ""],
];

const listState = { run: null, matches: new Map(), ...listAsked(new URLSearchParams()) };

/** The list's state in an address; missing or unknown values become the defaults. */
function listAsked(params) {
  const among = (name, options) => options.find(([value]) => value === params.get(name))?.[0] ?? options[0][0];
  const [, minus, sort] = /^(-?)(.*)$/.exec(params.get("sort") ?? "");
  const known = sort && COLUMNS.some(([name]) => name === sort);
  return {
    query: params.get("q") ?? "", which: among("which", WHICH), verdict: among("verdict", VERDICTS), theme: params.has("theme") ? Number(params.get("theme")) : null,
    sort: known ? sort : "size", down: known ? minus === "-" : true, page: Math.max(Math.trunc(Number(params.get("page"))) || 1, 1) - 1,
  };
}

/** The address of the list's current state. */
function listRoute() {
  const { run, query, which, verdict, theme, sort, down, page } = listState;
  return {
    atlas: "", run, q: query || null, which: which === "all" ? null : which, verdict: verdict === "all" ? null : verdict, theme,
    sort: sort === "size" && down ? null : `${down ? "-" : ""}${sort}`, page: page ? page + 1 : null,
  };
}

function atlasList(page) {
  const errors = page.errors[listState.run];
  const table = h("div", {});
  const status = h("p", { class: "hint", role: "status" });
  const redraw = () => drawList(errors, table, status);
  const change = (changes) => {
    Object.assign(listState, { page: 0 }, changes);
    redraw();
  };
  let waiting = 0;
  const box = h("input", {
    type: "search", id: "search", value: listState.query, placeholder: "words of a prompt, an answer, a response", autocomplete: "off",
    oninput: () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => search(errors, box.value, redraw, status), 200);
    },
  });
  if (listState.query) setTimeout(() => search(errors, listState.query, redraw, status, listState.page)); // after this view is shown
  else redraw();
  return [
    h("h1", {}, "Atlas of recurring errors"),
    atlasNotes(errors, page.runs[listState.run].filtered),
    h("div", { class: "controls" }, runPicker(page), h("label", { for: "search" }, "Search"), box,
      choice("Which", WHICH, listState.which, (which) => change({ which })),
      errors.clusters.right.includes(true) && choice("Verdict", VERDICTS, listState.verdict, (verdict) => change({ verdict })),
      listState.theme !== null && h("a", { href: route({ ...listRoute(), theme: null }) }, "Theme ", h("code", {}, page.themes?.names[listState.theme] ?? "not known"), " ×")),
    status, table,
  ];
}

function runPicker(page) {
  const runs = [...page.errors.entries()].filter(([, errors]) => errors);
  return runs.length > 1 && [
    h("label", { for: "run" }, "Run"),
    h("select", { id: "run", onchange: (event) => go({ ...listRoute(), run: Number(event.target.value), q: null, page: null }) },
      runs.map(([i]) => h("option", { value: i, selected: i === listState.run }, page.runs[i].name))),
  ];
}

/** The contents of the list and what was left out, in words. */
function atlasNotes(errors, filtered) {
  const totals = errors.totals;
  const notes = [
    `${count(totals.rows, "rollout")} of ${count(totals.prompts, "prompt")}, ${errors.basis}: ${count(totals.clusters, "cluster")}, ${count(totals.noise, "rollout")} in none.`,
    errors.prompts.key.length < totals.prompts && `The list and the pages are of ${integer(errors.prompts.key.length)} of ${integer(totals.prompts)} prompts, those with the biggest clusters.`,
    errors.detailed < totals.clusters && `Examples and heatmaps are of the ${integer(errors.detailed)} biggest of ${integer(totals.clusters)} clusters.`,
    !totals.rollouts && "The run has no rollout log, so there are no responses and no answers.",
    totals.texts < totals.rollouts && `The log keeps the texts of ${integer(totals.texts)} of ${integer(totals.rollouts)} rollouts.`,
    filtered && `${FILTERED}: a cluster of a solved prompt gets no later visit and stays alive.`,
  ];
  return h("p", { class: "note" }, notes.filter(Boolean).join(" "));
}

/** Where a cluster has `query` (lower case): [the kind of place, its text]; among the responses in `details`. */
function matchOf(errors, i, query, details) {
  const has = (text) => text.toLowerCase().includes(query);
  const place = errors.clusters.prompt[i];
  const label = errors.clusters.label[i];
  const [key, text] = [errors.prompts.key[place], errors.prompts.text[place]];
  if (has(text)) return ["prompt", text];
  if (has(key)) return ["key", key];
  const answer = errors.prompts.answers[place].some(has) && errors.prompt(place).clusters[label].answers.find(([one]) => has(one));
  if (answer) return ["answer", answer[0]];
  const response = details[place]?.clusters[label]?.examples.map(plainText).find(has);
  return response !== undefined && ["response", response];
}

/** Find the clusters that match `words`: first in prompts and answers, then also in the responses, which are unpacked for it. */
async function search(errors, words, redraw, status, page = 0) {
  const query = words.trim();
  Object.assign(listState, { query, page, matches: new Map() });
  if (!query) return redraw();
  const find = (details) => {
    for (let i = 0; i < errors.size; i += 1) {
      const match = !listState.matches.has(i) && matchOf(errors, i, query.toLowerCase(), details);
      if (match) listState.matches.set(i, match);
    }
    redraw();
  };
  find({});
  status.setAttribute("aria-busy", "true");
  status.textContent = `${count(listState.matches.size, "cluster")} so far; searching the responses …`;
  const details = await errors.details();
  if (listState.query !== query || !status.isConnected) return undefined;
  status.setAttribute("aria-busy", "false");
  return find(details);
}

function chosen(errors) {
  const { clusters } = errors;
  const { query, matches, which, verdict, theme, sort, down } = listState;
  const places = Array.from({ length: errors.size }, (_, i) => i).filter((i) => (!query || matches.has(i))
    && (theme === null || errors.themes?.of[i] === theme)
    && (which === "all" || (which === "alive") === (clusters.since[i] === 0))
    && (verdict === "all" || (verdict === "right") === clusters.right[i]));
  const column = clusters[sort];
  const name = (i) => errors.prompts.text[column[i]] || errors.prompts.key[column[i]];
  const compare = sort === "prompt" ? (a, b) => COLLATOR.compare(name(a), name(b)) : (a, b) => column[a] - column[b];
  return places.sort((a, b) => (down ? -1 : 1) * compare(a, b) || a - b);
}

function drawList(errors, holder, status) {
  replaceRoute(listRoute());
  const places = chosen(errors);
  const pages = Math.max(Math.ceil(places.length / ROWS), 1);
  const current = Math.min(listState.page, pages - 1); // a running search may still add pages
  const from = current * ROWS;
  const shown = places.slice(from, from + ROWS);
  const { query } = listState;
  status.textContent = places.length
    ? `${count(places.length, "cluster")}${query ? ` with “${query}”` : ""}; ${integer(from + 1)} to ${integer(from + shown.length)} shown.`
    : errors.size ? "No cluster fits." : "Nothing recurs: no two remembered rollouts of a prompt form a cluster yet.";
  const redraw = () => drawList(errors, holder, status);
  const again = holder.contains(document.activeElement) && document.activeElement.dataset.focus;
  holder.replaceChildren(h("div", { class: "scroll" }, h("table", { class: "list", "aria-label": "Clusters" },
    h("thead", {}, h("tr", {}, COLUMNS.map((column) => heading(column, redraw)))),
    h("tbody", {}, shown.map((i) => listRow(errors, i))))), ...pager(current, pages, redraw));
  if (again) holder.querySelector(`[data-focus="${again}"]`)?.focus();
}

function heading([name, title, kind], redraw) {
  if (!name) return h("th", { scope: "col" }, title);
  const active = listState.sort === name;
  const sort = () => {
    const down = active ? !listState.down : !["prompt", "first", "since"].includes(name);
    Object.assign(listState, { sort: name, page: 0, down });
    redraw();
  };
  return h("th", { scope: "col", class: kind, "aria-sort": active ? (listState.down ? "descending" : "ascending") : "none" },
    h("button", { type: "button", class: "sort", "data-focus": `sort-${name}`, onclick: sort },
      title, h("span", { "aria-hidden": "true" }, active ? (listState.down ? " ▾" : " ▴") : " ▵")));
}

function listRow(errors, i) {
  const { clusters } = errors;
  const prompt = errors.prompt(clusters.prompt[i]);
  const cluster = prompt.clusters[clusters.label[i]];
  const query = listState.query.toLowerCase();
  const [where, text] = listState.matches.get(i) || [];
  const href = route({ prompt: prompt.key, run: errors.run, cluster: cluster.label });
  return h("tr", { onclick: (event) => !event.target.closest("a") && (location.hash = href) },
    h("td", { class: "text" }, h("a", { href }, marked(where === "prompt" ? around(text, query, 90) : short(prompt.text, 180), query)),
      h("span", { class: "keyname" }, where === "key" ? marked(prompt.key, query) : prompt.key, " · cluster ", cluster.label, cluster.right && h("span", { class: "badge" }, "right")),
      where === "response" && h("span", { class: "found" }, "response: ", marked(around(text, query, 60), query))),
    h("td", { class: "num strong" }, integer(cluster.size)), h("td", { class: "num" }, percent(cluster.share)),
    h("td", { class: "num wide-only" }, integer(cluster.first)), h("td", { class: "num wide-only" }, integer(cluster.last)),
    h("td", {}, sparkline(cluster.growth, "k0", `members in each of ${prompt.visits.length} visits`)),
    h("td", {}, fate(cluster)),
    h("td", {}, answerChips(cluster, query)),
    h("td", {}, prompt.right === null ? h("span", { class: "faint" }, "–") : rightAnswer(prompt)));
}

/** Alive, or the number of visits since the last new member; unknown after a single visit. */
function fate({ growth, since }) {
  if (growth.length === 1) return h("span", { class: "fate died" }, "◌ one visit so far");
  if (!since) return h("span", { class: "fate alive", title: "got a member when the prompt was last seen" }, "● alive");
  const visits = count(since, "visit");
  return h("span", { class: "fate died", title: `no new member in the prompt's last ${visits}` }, `○ died, ${visits} since`);
}

function answerChips({ answers }, query) {
  if (!answers.length) return h("span", { class: "faint" }, "not known");
  const hit = answers.findIndex(([answer]) => query && answer.toLowerCase().includes(query));
  const shown = answers.filter((_, i) => i < 3 || i === hit);
  return h("span", { class: "chips" }, shown.map(([answer, n]) => h("span", { class: "chip" }, h("code", {}, marked(short(answer, 40), query)), ` ×${n}`)),
    answers.length > shown.length && h("span", { class: "faint" }, `+${answers.length - shown.length}`));
}

function pager(current, pages, redraw) {
  if (pages < 2) return [];
  const turn = (name, page, label) => h("button", {
    type: "button", class: "plain", disabled: page < 0 || page >= pages || page === current, "data-focus": `page-${name}`, "aria-label": label,
    onclick: () => {
      listState.page = page;
      redraw();
    },
  }, name);
  return [h("nav", { class: "pager", "aria-label": "Pages" }, turn("«", 0, "first page"), turn("‹", current - 1, "previous page"),
    h("span", {}, `page ${integer(current + 1)} of ${integer(pages)}`), turn("›", current + 1, "next page"), turn("»", pages - 1, "last page"))];
}
