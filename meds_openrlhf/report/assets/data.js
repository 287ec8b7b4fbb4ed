// Unpack the page's data, base64 of gzip of JSON: the tables immediately, details on demand.

async function unpack(id) {
  const coded = document.getElementById(id).textContent;
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(coded) : Uint8Array.from(atob(coded), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** `make(key)`, made once for each key. */
function remembered(make) {
  const known = new Map();
  return (key) => {
    if (!known.has(key)) known.set(key, make(key));
    return known.get(key);
  };
}

/** A promise of a portion of details, by number. */
const portion = remembered((number) => unpack(`details-${number}`));

/** The errors of a run; what is derived from the tables is computed on first use. */
class Errors {
  constructor(tables, run) {
    Object.assign(this, tables);
    this.run = run;
    this.size = tables.clusters.size.length;
    this.place = new Map(tables.prompts.key.map((key, place) => [key, place]));
    this.responses = new Map(); // per prompt: example texts by label
    this.prompt = remembered((place) => this.expand(place)); // a prompt with its individual rows and its clusters
  }

  expand(place) {
    const of = (name) => this.prompts[name][place];
    const [values, counts] = of("steps");
    const [visits, rollouts, correct] = of("seen");
    const none = () => Array(visits.length).fill(0);
    const prompt = {
      place, key: of("key"), text: of("text") || of("key"), right: of("right"), steps: values.flatMap((value, i) => Array(counts[i]).fill(value)),
      labels: of("labels"), answer: of("answer"), answers: of("answers"), visits, rollouts, correct, clusters: [],
      rows: { right: none(), wrong: none() }, noise: none(), // of each visit
    };
    const column = new Map(visits.map((step, i) => [step, i]));
    const firstRight = of("first_right");
    prompt.labels.forEach((label, row) => {
      const visit = column.get(prompt.steps[row]);
      const right = row >= firstRight;
      prompt.rows[right ? "right" : "wrong"][visit] += 1;
      if (label === -1) {
        prompt.noise[visit] += 1;
        return;
      }
      prompt.clusters[label] ||= { label, right, growth: none(), rows: [] };
      prompt.clusters[label].growth[visit] += 1;
      prompt.clusters[label].rows.push(row);
    });
    for (const cluster of prompt.clusters) this.finish(prompt, cluster);
    return prompt;
  }

  finish(prompt, cluster) {
    const first = cluster.growth.findIndex(Boolean);
    const last = cluster.growth.findLastIndex(Boolean);
    const size = cluster.rows.length;
    const counts = new Map();
    for (const row of cluster.rows) counts.set(prompt.answer[row], (counts.get(prompt.answer[row]) || 0) + 1);
    const unknown = counts.get(-1) || 0;
    counts.delete(-1);
    Object.assign(cluster, {
      size, unknown, first: prompt.visits[first], last: prompt.visits[last], since: prompt.visits.length - 1 - last,
      share: size / sum(prompt.rows[cluster.right ? "right" : "wrong"]),
      answers: [...counts].map(([code, n]) => [prompt.answers[code], n]).sort((a, b) => b[1] - a[1]),
    });
  }

  /** A promise of the details of a prompt's clusters, or of null if the report has none. */
  async details(place) {
    const number = this.portion[place];
    return number < 0 ? null : (await portion(number))[place];
  }

  /** Unpack all responses for searching, unless `goesOn`, which is told the progress, says no; whether all are unpacked. */
  async loadResponses(goesOn) {
    const numbers = [...new Set(this.portion.filter((number) => number >= 0))];
    for (const [done, number] of numbers.entries()) {
      if (!goesOn(done, numbers.length)) return false;
      for (const [place, { clusters }] of Object.entries(await portion(number))) {
        this.responses.set(Number(place), Object.fromEntries(Object.entries(clusters).map(([label, one]) => [label, one.examples.map(plainText)])));
      }
    }
    return goesOn(numbers.length, numbers.length);
  }
}

const plainText = (example) => example.p.map(([kind, text]) => (kind === 2 ? " … " : text)).join("");
