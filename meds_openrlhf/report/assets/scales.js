// Axes: round ticks, scales, and thinning of points to the resolution of the screen.

/** Up to `most` round numbers that span `low` to `high`. */
function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** A function that maps values to positions. */
function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** The range of a vertical axis for `values`, with a margin, extended to 0 if that is near. */
function extent(values, fromZero) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  if (fromZero || (low >= 0 && low < 0.35 * high)) low = Math.min(low, 0);
  if (low === 0 && high === 0) return [0, 1];
  if (low === high) return [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const air = (high - low) * 0.06;
  return [low === 0 ? 0 : low - air, high + air];
}

/** Keep the least and the greatest point in each of `width` intervals: a line of that many pixels shows no more. */
function thinned(points, width) {
  if (points.length <= 3 * width) return points;
  const kept = [];
  const stretch = points.length / width;
  for (let i = 0; i < width; i += 1) {
    const part = points.slice(Math.floor(i * stretch), Math.floor((i + 1) * stretch));
    let least = part[0];
    let most = part[0];
    for (const point of part) {
      if (point[1] < least[1]) least = point;
      if (point[1] > most[1]) most = point;
    }
    kept.push(...(least[0] <= most[0] ? [least, most] : [most, least]));
  }
  return kept;
}

/** Exponential moving average with bias correction; gaps stay gaps. */
function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

const round1 = (value) => Math.round(value * 10) / 10;

/** Grid, labels and axis titles of a chart: `box` is {left, right, top, bottom}. */
function axes(box, xTicks, x, yTicks, y, unit) {
  const layer = s("g", { class: "axes", "aria-hidden": "true" });
  for (const value of yTicks) {
    layer.append(s("line", { x1: box.left, x2: box.right, y1: round1(y(value)), y2: round1(y(value)) }));
    layer.append(s("text", { x: box.left - 6, y: round1(y(value)) + 3.5, "text-anchor": "end" }, tickText(value, unit)));
  }
  for (const value of xTicks) {
    layer.append(s("text", { x: round1(x(value)), y: box.bottom + 15, "text-anchor": "middle" }, integer(value)));
  }
  layer.append(s("text", { x: box.right, y: box.bottom + 32, "text-anchor": "end" }, "step"));
  return layer;
}

function tickText(value, unit) {
  if (unit === "share") return `${Number((100 * value).toPrecision(4))}%`;
  if (unit === "bytes") return bytes(value);
  return unit ? `${plainTick(value)} ${unit}` : plainTick(value);
}

function plainTick(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return size && size < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(4)));
}

/** Whole-numbered ticks for steps. */
const stepTicks = (low, high, most) => ticks(low, high, most).filter((value) => Number.isInteger(value));
