// Layer logits of some members of a cluster and of the rows nearest to it: a row per response, a column per layer.

const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis

function colorAt(part) {
  const at = Math.min(Math.max(part, 0), 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  return `rgb(${STOPS[low].map((value, i) => Math.round(value + (STOPS[low + 1][i] - value) * (at - low))).join(",")})`;
}

/** `map` in its packed form {m, o, lo, hi, q}; rows and answers are looked up in `prompt`. */
function heatmap(errors, prompt, cluster, map) {
  const layers = map.lo.length;
  const levels = Uint8Array.from(atob(map.q), (c) => c.charCodeAt(0));
  const value = (row, layer) => map.lo[layer] + (map.hi[layer] - map.lo[layer]) * (levels[row * layers + layer] / 255);
  const holder = h("div", { class: "scroll" });
  const draw = (mode) => holder.replaceChildren(heatmapSvg(errors, prompt, map, layers, levels, value, mode));
  draw("layer");
  return h("section", { class: "heat" }, h("h3", {}, "Layer logits at the answer"),
    h("p", { class: "hint" }, `${count(map.m.length, "member")} of ${integer(cluster.size)}, spread over time, above the ${count(map.o.length, "other rollout")} of the prompt nearest to the cluster. `
      + "A cluster whose rows look alike and unlike those below it is one error made in one way."),
    h("div", { class: "controls" }, "Colours: ", choice("Colours", [["layer", "within each layer"], ["all", "logits as they are"]], "layer", draw)), holder);
}

function heatmapSvg(errors, prompt, map, layers, levels, value, mode) {
  const cell = { width: Math.max(Math.min(Math.floor(620 / layers), 22), 7), height: 17 };
  const left = 210;
  const gap = map.o.length ? 34 : 0;
  const top = 22;
  const low = Math.min(...map.lo);
  const high = Math.max(...map.hi);
  const bottom = top + (map.m.length + map.o.length) * cell.height + gap;
  const width = left + Math.max(layers * cell.width + 16, 300);
  const svg = s("svg", { viewBox: `0 0 ${width} ${bottom + 62}`, width, height: bottom + 62, class: "heatmap", role: "img", "aria-label": `layer logits of ${map.m.length} members and ${map.o.length} other rollouts in ${layers} layers` });
  svg.append(s("text", { x: 0, y: 14, class: "head" }, "members"));
  [...map.m, ...map.o].forEach((place, row) => {
    const outside = row >= map.m.length;
    const y = top + row * cell.height + (outside ? gap : 0);
    svg.append(s("text", { x: 0, y: y + 12.5 }, rowName(prompt, place, outside)));
    for (let layer = 0; layer < layers; layer += 1) {
      const part = mode === "layer" ? levels[row * layers + layer] / 255 : (value(row, layer) - low) / (high - low || 1);
      svg.append(s("rect", { x: left + layer * cell.width, y, width: cell.width - 0.5, height: cell.height - 1, fill: colorAt(part) },
        s("title", {}, `layer ${layer + 1}: ${figure(value(row, layer))} (step ${prompt.steps[place]})`)));
    }
  });
  if (gap) svg.append(s("text", { x: 0, y: top + map.m.length * cell.height + gap - 8, class: "head" }, "nearest other rollouts"),
    s("line", { class: "divider", x1: 0, x2: width, y1: top + map.m.length * cell.height + 10, y2: top + map.m.length * cell.height + 10 }));
  svg.append(layerAxis(errors.compared, layers, left, bottom, cell.width), colorKey(left, bottom + 44, mode, low, high));
  return svg;
}

function rowName(prompt, place, outside) {
  const answer = prompt.answer[place] >= 0 ? short(prompt.answers[prompt.answer[place]], 14) : "";
  const label = prompt.labels[place];
  const where = !outside ? "" : label >= 0 ? `cluster ${label}` : "noise";
  return [`step ${prompt.steps[place]}`, answer && `“${answer}”`, where].filter(Boolean).join(" · ");
}

function layerAxis(compared, layers, left, bottom, width) {
  const axis = s("g", { class: "axes" });
  const every = Math.ceil(layers / Math.floor((layers * width) / 34));
  for (let layer = 0; layer < layers; layer += every) {
    axis.append(s("text", { x: left + (layer + 0.5) * width, y: bottom + 24, "text-anchor": "middle" }, layer + 1));
  }
  axis.append(s("text", { x: left - 8, y: bottom + 24, "text-anchor": "end" }, "layer (underlined: clustered)"));
  for (const layer of compared) {
    axis.append(s("rect", { class: "compared", x: left + layer * width, y: bottom + 5, width: width - 0.5, height: 3 }));
  }
  return axis;
}

function colorKey(left, y, mode, low, high) {
  const key = s("g", { class: "axes" });
  for (let i = 0; i < 60; i += 1) key.append(s("rect", { x: left + i * 2.5, y: y - 8, width: 2.6, height: 9, fill: colorAt(i / 59) }));
  key.append(s("text", { x: left - 8, y, "text-anchor": "end" }, mode === "layer" ? "lowest of the layer" : figure(low)),
    s("text", { x: left + 158, y }, mode === "layer" ? "highest of the layer" : figure(high)));
  return key;
}
