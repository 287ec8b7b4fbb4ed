// Layer logits of some members of a cluster and of the rows nearest to it: a row per response, a column per layer.

const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis
const HEAT = { left: 210, top: 22, row: 17 };

function colorAt(part) {
  const at = Math.min(Math.max(part, 0), 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  return `rgb(${STOPS[low].map((value, i) => Math.round(value + (STOPS[low + 1][i] - value) * (at - low))).join(",")})`;
}

/** `map` in its packed form {m, o, lo, hi, q}; rows and answers are looked up in `prompt`. */
function heatmap(errors, prompt, cluster, map) {
  const layers = map.lo.length;
  const levels = Uint8Array.from(atob(map.q), (c) => c.charCodeAt(0));
  const column = Math.max(Math.min(Math.floor(620 / layers), 22), 7);
  const end = HEAT.top + map.m.length * HEAT.row; // of the members
  const gap = map.o.length ? 34 : 0;
  const bottom = end + gap + map.o.length * HEAT.row;
  const width = HEAT.left + Math.max(layers * column + 16, 300);
  const row = (place, i) => {
    const y = HEAT.top + i * HEAT.row + (i < map.m.length ? 0 : gap);
    return [s("text", { x: 0, y: y + 12.5 }, rowName(prompt, place, i >= map.m.length)), map.lo.map((lowest, layer) => {
      const level = levels[i * layers + layer] / 255;
      const value = lowest + (map.hi[layer] - lowest) * level;
      return s("rect", { x: HEAT.left + layer * column, y, width: column - 0.5, height: HEAT.row - 1, fill: colorAt(level) },
        s("title", {}, `layer ${layer + 1}: ${figure(value)} (step ${prompt.steps[place]})`));
    })];
  };
  const svg = s("svg",
    { viewBox: `0 0 ${width} ${bottom + 62}`, width, height: bottom + 62, class: "heatmap", role: "img", "aria-label": `layer logits of ${map.m.length} members and ${map.o.length} other rollouts in ${layers} layers` },
    s("text", { x: 0, y: 14, class: "head" }, "members"), [...map.m, ...map.o].map(row),
    gap > 0 && [s("text", { x: 0, y: end + gap - 8, class: "head" }, "nearest other rollouts"), s("line", { class: "divider", x1: 0, x2: width, y1: end + 10, y2: end + 10 })],
    heatAxes(errors.compared, layers, column, bottom));
  return h("section", { class: "heat" }, h("h3", {}, "Layer logits at the answer"),
    h("p", { class: "hint" }, `${count(map.m.length, "member")} of ${integer(cluster.size)}, spread over time, above the ${count(map.o.length, "other rollout")} of the prompt nearest to the cluster. `
      + "A cluster whose rows look alike and unlike those below it is one error made in one way."),
    h("div", { class: "scroll" }, svg));
}

function rowName(prompt, place, outside) {
  const answer = prompt.answer[place] >= 0 ? short(prompt.answers[prompt.answer[place]], 14) : "";
  const label = prompt.labels[place];
  const where = !outside ? "" : label >= 0 ? `cluster ${label}` : "noise";
  return [`step ${prompt.steps[place]}`, answer && `“${answer}”`, where].filter(Boolean).join(" · ");
}

/** The layers' numbers, with a line under those that are clustered, and the colors. */
function heatAxes(compared, layers, column, bottom) {
  const every = Math.ceil(layers / Math.floor((layers * column) / 34));
  const numbers = Array.from({ length: Math.ceil(layers / every) }, (_, i) => i * every);
  const label = (x, y, text, anchor) => s("text", { x, y, "text-anchor": anchor }, text);
  return s("g", { class: "axes" },
    label(HEAT.left - 8, bottom + 24, "layer (underlined: clustered)", "end"),
    numbers.map((layer) => label(HEAT.left + (layer + 0.5) * column, bottom + 24, layer + 1, "middle")),
    compared.map((layer) => s("rect", { class: "compared", x: HEAT.left + layer * column, y: bottom + 5, width: column - 0.5, height: 3 })),
    label(HEAT.left - 8, bottom + 44, "lowest of the layer", "end"), label(HEAT.left + 158, bottom + 44, "highest of the layer", "start"),
    Array.from({ length: 60 }, (_, i) => s("rect", { x: HEAT.left + i * 2.5, y: bottom + 36, width: 2.6, height: 9, fill: colorAt(i / 59) })));
}
