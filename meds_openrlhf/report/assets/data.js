// Unpack the page's data, base64 of gzip of JSON: the tables immediately, details on demand.

async function unpack(id) {
  const coded = document.getElementById(id).textContent;
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(coded) : Uint8Array.from(atob(coded), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const portions = new Map();

/** A promise of a portion of details, by number. */
function portion(number) {
  if (!portions.has(number)) portions.set(number, unpack(`details-${number}`));
  return portions.get(number);
}

/** The errors of a run; what is derived from the tables is computed on first use. */
class Errors {
  constructor(tables, run) {
    Object.assign(this, tables);
    this.run = run;
    this.size = tables.clusters.size.length;
    this.place = new Map(tables.prompts.key.map((key, place) => [key, place]));
    this.expanded = new Map();
    this.responses = new Map(); // per prompt: label -> example texts, and the same joined in lower case
  }

  /** A prompt with its individual rows and its clusters. */
  prompt(place) {
    if (!this.expanded.has(place)) this.expanded.set(place, this.expand(place));
    return this.expanded.get(place);
  }

  expand(place) {
    const table = this.prompts;
    const [values, counts] = table.steps[place];
    const steps = values.flatMap((value, i) => Array(counts[i]).fill(value));
    const [visits, rollouts, correct] = table.seen[place];
    const column = new Map(visits.map((step, i) => [step, i]));
    const prompt = {
      place, key: table.key[place], text: table.text[place] || table.key[place], right: table.right[place],
      steps, labels: table.labels[place], answer: table.answer[place], answers: table.answers[place],
      firstRight: table.first_right[place], visits, rollouts, correct, column, clusters: [],
      noise: { right: Array(visits.length).fill(0), wrong: Array(visits.length).fill(0) },
    };
    prompt.labels.forEach((label, row) => this.count(prompt, label, row));
    for (const one of prompt.clusters) this.finish(prompt, one);
    return prompt;
  }

  count(prompt, label, row) {
    const visit = prompt.column.get(prompt.steps[row]);
    const right = row >= prompt.firstRight;
    if (label === -1) prompt.noise[right ? "right" : "wrong"][visit] += 1;
    else {
      prompt.clusters[label] ||= { label, right, size: 0, growth: Array(prompt.visits.length).fill(0), rows: [] };
      const cluster = prompt.clusters[label];
      cluster.size += 1;
      cluster.growth[visit] += 1;
      cluster.rows.push(row);
    }
  }

  finish(prompt, cluster) {
    const seen = cluster.growth.map((n, i) => (n ? i : -1)).filter((i) => i >= 0);
    cluster.first = prompt.visits[seen[0]];
    cluster.last = prompt.visits[seen[seen.length - 1]];
    cluster.since = prompt.visits.length - 1 - seen[seen.length - 1];
    const inside = prompt.labels.filter((label, row) => label >= -1 && (row >= prompt.firstRight) === cluster.right);
    cluster.share = cluster.size / inside.length;
    const counts = new Map();
    for (const row of cluster.rows) counts.set(prompt.answer[row], (counts.get(prompt.answer[row]) || 0) + 1);
    cluster.unknown = counts.get(-1) || 0;
    counts.delete(-1);
    cluster.answers = [...counts].map(([code, n]) => [prompt.answers[code], n]).sort((a, b) => b[1] - a[1]);
  }

  /** A promise of the details of a prompt's clusters, or of null if the report has none. */
  async details(place) {
    const number = this.portion[place];
    return number < 0 ? null : (await portion(number))[place];
  }

  /** Unpack all responses for searching. `tell` gets the progress and returns whether to continue. */
  async loadResponses(tell) {
    const numbers = [...new Set(this.portion.filter((number) => number >= 0))];
    for (const [done, number] of numbers.entries()) {
      if (!tell(done, numbers.length)) return;
      const content = await portion(number);
      this.portion.forEach((of, place) => {
        if (of !== number || this.responses.has(place)) return;
        const texts = new Map();
        for (const [label, one] of Object.entries(content[place].clusters)) {
          const own = one.examples.map(plainText);
          texts.set(Number(label), { texts: own, lower: own.join("\n").toLowerCase() });
        }
        this.responses.set(place, texts);
      });
    }
    tell(numbers.length, numbers.length);
  }
}

const plainText = (example) => example.p.map(([kind, text]) => (kind === 2 ? " … " : text)).join("");
