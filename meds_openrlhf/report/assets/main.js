// The page as a whole: the view that the address selects.

const VIEWS = [["errors", "Errors"], ["overview", "Overview"], ["curves", "Curves"], ["atlas", "Atlas"]];

/** The address of a view; null parameters are left out. */
function route(params) {
  const words = Object.entries(params).filter(([, value]) => value !== null && value !== undefined);
  return `#${words.map(([name, value]) => (value === "" ? name : `${name}=${encodeURIComponent(value)}`)).join("&")}`;
}

const go = (params) => { location.hash = route(params); };

const replaceRoute = (params) => history.replaceState(null, "", last.hash = route(params));

const last = { view: 0, hash: null, prompt: null, scroll: new Map() };

async function show(page) {
  const params = new URLSearchParams(location.hash.slice(1));
  const name = params.has("prompt") ? "prompt" : VIEWS.map(([one]) => one).find((one) => params.has(one)) || firstView(page);
  const isFirst = last.hash === null;
  if (!isFirst) last.scroll.set(last.hash, window.scrollY);
  if (name === "prompt" || name === "atlas") chooseRun(page, params);
  if (name === "atlas") Object.assign(listState, listAsked(params), { matches: new Map() });
  const number = last.view += 1;
  const drawn = await drawView(page, name, params);
  if (number !== last.view) return; // another view was chosen meanwhile
  const view = document.getElementById("view");
  view.replaceChildren(...drawn.flat(Infinity).filter(Boolean));
  showAnswers(view);
  const tabs = VIEWS.map(([one, title]) => h("a", { href: `#${one}`, "aria-current": one === (name === "prompt" ? "atlas" : name) && "page" }, title));
  document.getElementById("tabs").replaceChildren(...tabs);
  document.title = `${view.querySelector("h1")?.textContent ?? ""} · meds report`;
  if (!isFirst) place(view, name, params);
  Object.assign(last, { hash: location.hash, prompt: params.get("prompt") });
}

/** Scroll to the top of the new view, or in the list to its last position. */
function place(view, name, params) {
  const samePrompt = name === "prompt" && last.prompt === params.get("prompt");
  (samePrompt && document.querySelector(".cluster[aria-current]") || view).focus({ preventScroll: true });
  if (samePrompt) document.getElementById("cluster")?.scrollIntoView({ block: "start" });
  else window.scrollTo(0, name === "atlas" ? last.scroll.get(location.hash) ?? 0 : 0);
}

const firstView = (page) => (page.gradings ? "errors" : "overview");

function drawView(page, name, params) {
  if (name in { overview, curves }) return { overview, curves }[name](page);
  if (name === "errors") return errorsView(page);
  if (page.errors[listState.run]) return name === "prompt" ? promptView(page, params) : atlasList(page);
  return [h("h1", {}, "Atlas of recurring errors"), h("p", { class: "note" }, "The run has neither remembered nor logged a wrong rollout, so there is no atlas.")];
}

/** Choose the run in the address, or else the current run, or the first run with an atlas. */
function chooseRun(page, params) {
  const given = Number(params.get("run") ?? NaN);
  const next = page.errors[given] ? given : listState.run ?? page.errors.findIndex(Boolean);
  if (next !== listState.run && listState.run !== null) Object.assign(listState, { page: 0, query: "" });
  listState.run = next;
}

async function main() {
  const note = document.getElementById("loading");
  if (!CSS.supports("color", "light-dark(red, red)")) {
    note.textContent = "This browser cannot show the report; take one from 2024 or later.";
    return;
  }
  const page = await unpack("core");
  page.errors = page.runs.map((run, i) => run.atlas && new Errors({ ...run.atlas, themes: page.themes?.runs[i] }, i));
  document.getElementById("names").textContent = page.runs.map((run) => run.name).join(", ");
  document.getElementById("foot").textContent = `Made by meds ${page.version}, ${moment(page.made)}.`;
  document.getElementById("skip").addEventListener("click", () => document.getElementById("view").focus());
  window.addEventListener("hashchange", () => show(page));
  await show(page);
  document.documentElement.dataset.ready = "true";
}

main();
