// Unpack the page's data, base64 of gzip of JSON: the tables immediately, details on demand.

const FILTERED = "Dynamic filtering leaves out prompts whose responses of a step are all right or, extras apart, all wrong";

async function unpack(id) {
  const coded = document.getElementById(id).textContent;
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(coded) : Uint8Array.from(atob(coded), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** The errors of a run; what is derived from the tables is computed on first use. */
class Errors {
  constructor(tables, run) {
    Object.assign(this, tables);
    this.run = run;
    this.size = tables.clusters.size.length;
    this.place = new Map(tables.prompts.key.map((key, place) => [key, place]));
    this.clustersOf = tables.prompts.key.map(() => []); // by place and label: the index in the table of clusters
    tables.clusters.prompt.forEach((place, i) => { this.clustersOf[place][tables.clusters.label[i]] = i; });
    this.expanded = []; // prompts by place
  }

  /** A prompt with its individual rows and its clusters. */
  prompt(place) {
    return this.expanded[place] ??= this.expand(place);
  }

  expand(place) {
    const of = (name) => this.prompts[name][place];
    const [visits, rollouts, correct] = of("seen");
    const none = () => Array(visits.length).fill(0);
    const { right, size, share, first, last, since } = this.clusters;
    const prompt = {
      place, key: of("key"), text: of("text") || of("key"), right: of("right"), steps: of("visit").map((visit) => visits[visit]),
      labels: of("labels"), answer: of("answer"), answers: of("answers"), visits, rollouts, correct,
      clusters: this.clustersOf[place].map((i, label) => ({
        label, right: right[i], size: size[i], share: share[i], first: first[i], last: last[i], since: since[i], growth: none(), given: [],
      })),
      rows: { right: none(), wrong: none() }, noise: none(), // of each visit
    };
    prompt.labels.forEach((label, row) => {
      const visit = of("visit")[row];
      prompt.rows[row < of("first_right") ? "wrong" : "right"][visit] += 1;
      (label === -1 ? prompt.noise : prompt.clusters[label].growth)[visit] += 1;
      prompt.clusters[label]?.given.push(prompt.answer[row]);
    });
    for (const cluster of prompt.clusters) {
      const known = Map.groupBy(cluster.given.filter((code) => code >= 0), (code) => prompt.answers[code]);
      cluster.answers = [...known].map(([answer, all]) => [answer, all.length]).sort((a, b) => b[1] - a[1]);
      cluster.unknown = cluster.size - sum(cluster.answers.map(([, n]) => n));
    }
    return prompt;
  }

  /** A promise of the details of the biggest clusters, by place. */
  details() {
    return this.unpacked ??= unpack(`details-${this.run}`);
  }
}

const plainText = (example) => example.p.map(([kind, text]) => (kind === 2 ? " … " : text)).join("");
