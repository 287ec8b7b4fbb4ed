// Texts of prompts and responses as elements: turns, Markdown and formulas. What is not understood stays as it is written.

const LISTS = 3; // most lists within each other
const LONGEST_TEXT = 20_000; // characters from which a text is shown as it is written
const LONG_SCRATCH = 600; // characters from which scratch work is closed
const CUT = "\uFFFC"; // stands for characters left out; a text's own character of this kind is at no place of a cut
const TURN = /<\|im_start\|>([\w-]{1,30})\n|<\|start_header_id\|>([\w-]{1,30})<\|end_header_id\|>\n{0,2}|<\|(?:im_end|eot_id)\|>/g;
const TAG = /<(\/?)(think|tool_call|tool_response)>/g;
const HEADINGS = { think: "scratch work", tool_call: "tool call", tool_response: "tool reply" };
const ITEM = /^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(?=\S)/;
const HEADING = /^[ \t]*#{1,6}[ \t]+(?=\S)/;
const RULE = /^[ \t]*-{3,}[ \t]*$/;
const EMPHASIS = { "*": "em", "**": "strong" };
const OPENING = /(?<![^\n])[ \t]*(`{3,})|`+|\\boxed\{|\\begin\{[a-z]+\*?\}|\\[^]|\$\$?/g;
const SPECIAL = /\*+|\\[\\$%*_#]|[\\`$]/g;
const FENCE_END = /\n[ \t]*`{3,}[ \t]*(?![^\n])/g;
const EMPTY_LINE = /\n[ \t]*\n/g;
const PARAGRAPH = /\n[ \t]*(?:\n|[-*+] |#|`{3}|\d{1,9}[.)] )/g; // begins another one
const CLOSER = { // of a formula or code: its end, what may not be before that, and its kind
  "\\(": [/\\\)/g, EMPTY_LINE, "formula"], "\\[": [/\\\]/g, /(?<!\\)\\\[/g, "display"], "\\boxed{": ["}", CUT, "formula"],
  $$: [/\$\$/g, CUT, "display"], $: [/(?<!\\)\$/g, PARAGRAPH, "formula"],
};

/** The elements of a text in `parts`, which are [kind, content] as in the details, with `query` (lower case) marked. */
function rendered(parts, query) {
  if (sum(parts.map(([, content]) => content.length ?? 0)) > LONGEST_TEXT) return asWritten(parts, query);
  const holder = h("div", {}, new Text(parts, query).turns());
  const lost = parts.some(([kind]) => kind === 1) && !holder.querySelector(".answer");
  return lost ? asWritten(parts, query) : [...holder.childNodes];
}

/** The same text exactly as it is written. */
function asWritten(parts, query) {
  const kinds = [(text) => marked(text, query), (text) => h("strong", { class: "answer" }, text), leftOut];
  return [h("div", { class: "source" }, parts.map(([kind, content]) => kinds[kind](content)))];
}

/** A text without paragraphs. */
function oneLine(text) {
  const whole = new Text([[0, text]], "");
  whole.findSpans(0, text.length);
  return whole.inline(0, text.length);
}

/** The right answer to a prompt: a formula if it is one. */
function rightAnswer({ right }) {
  const nodes = /[\\^_{]/.test(right) && !right.includes("$") && new Formula(right, 0, NO_MARK).nodes();
  return nodes ? m("math", {}, nodes) : right.includes("$") ? oneLine(short(right, 120)) : h("code", {}, short(right, 120));
}

const leftOut = (left) => h("span", { class: "cut" }, `… ${count(left, "character")} left out …`);

const NO_MARK = { from: -1, to: -1 };

const overlap = (one, other) => one.from < other.to && other.from < one.to;

/** Nodes of `items`; neighbors that lie in the marked part are together in a node that `make` creates. */
function gather(items, mark, make) {
  const nodes = [];
  let marking = null;
  for (const { from, to, node } of items) {
    const inside = mark.from <= from && to <= mark.to;
    if (!inside) nodes.push(node);
    else if (marking) fill(marking, null, [node]);
    else nodes.push(fill(marking = make(), null, [node]));
    if (!inside) marking = null;
  }
  for (const outer of nodes.filter((node) => node.classList?.contains("answer"))) {
    outer.querySelectorAll(".answer").forEach((inner) => inner.classList.remove("answer"));
  }
  return nodes;
}

/** A text with its marked part and its cuts; what it reads is between two of its places. */
class Text {
  constructor(parts, query) {
    Object.assign(this, { text: "", mark: NO_MARK, cuts: new Map(), query, spans: new Map(), following: new Map(), closing: null });
    for (const [kind, content] of parts) {
      const from = this.text.length;
      if (kind === 2) this.cuts.set(from + 2, content);
      this.text += kind === 2 ? `\n\n${CUT}\n\n` : content;
      if (kind === 1) this.mark = { from: this.mark === NO_MARK ? from : this.mark.from, to: this.text.length };
    }
  }

  /** Turns as blocks with their role; the end of a turn without a beginning stays as text. */
  turns() {
    const nodes = [];
    let [role, from] = [null, 0];
    const close = (to) => nodes.push(role === null ? this.turn(from, to) : h("section", { class: "turn" }, h("h4", {}, role), this.turn(from, to)));
    for (const { 0: markup, 1: chat, 2: header, index } of this.text.matchAll(TURN)) {
      const next = chat ?? header ?? null;
      if (next === null && role === null) continue;
      close(index);
      [role, from] = [next, index + markup.length];
    }
    close(this.text.length);
    return nodes;
  }

  /** Scratch work and calls of tools as blocks, and the text between them. */
  turn(from, to) {
    const nodes = [];
    const source = this.text.slice(from, to);
    const lastEnd = (name) => source.lastIndexOf(`</${name}>`);
    const ends = { think: lastEnd("think"), tool_call: lastEnd("tool_call"), tool_response: lastEnd("tool_response") };
    let [at, open, thought] = [0, null, false];
    for (const { 0: markup, 1: slash, 2: name, index } of source.matchAll(TAG)) {
      const begins = !slash && !open && (ends[name] > index || (name === "think" && !source.slice(at, index).trim()));
      const ends_ = slash && (open ? open === name : name === "think" && !thought);
      if (!begins && !ends_) continue;
      nodes.push(begins ? this.markdown(from + at, from + index) : this.block(name, from + at, from + index));
      [at, open, thought] = [index + markup.length, begins ? name : null, true];
    }
    nodes.push(open ? this.block(open, from + at, to) : this.markdown(from + at, to));
    return nodes;
  }

  block(name, from, to) {
    if (name !== "think") return h("section", { class: "turn" }, h("h4", {}, HEADINGS[name]), h("pre", {}, this.plain(...this.trimmed(from, to))));
    const wanted = overlap(this.mark, { from, to }) || (this.query && this.text.slice(from, to).toLowerCase().includes(this.query));
    return h("details", { class: "turn", open: wanted || to - from <= LONG_SCRATCH }, h("summary", {}, HEADINGS[name]), this.markdown(from, to));
  }

  /** The places without line breaks at both ends. */
  trimmed(from, to) {
    const begin = this.text[from] === "\n" ? from + 1 : from;
    return [begin, this.text[to - 1] === "\n" && to > begin ? to - 1 : to];
  }

  markdown(from, to) {
    return this.blocks(this.findSpans(from, to), 0, 0);
  }

  /** Find formulas and code, by where they begin; returns the lines as [from, to], which end in none of them. */
  findSpans(from, to) {
    const lines = [[from]];
    const endLines = (at, end) => {
      for (const { index } of this.text.slice(at, end).matchAll(/\n/g)) {
        lines.at(-1).push(at + index);
        lines.push([at + index + 1]);
      }
    };
    let at = from;
    OPENING.lastIndex = from;
    for (let found = OPENING.exec(this.text); found && found.index < to; found = OPENING.exec(this.text)) {
      const opening = found[1] ?? found[0];
      const place = OPENING.lastIndex - opening.length;
      const span = found[1] ? this.fence(place, to) : this.span(opening, place);
      if (!span || span.to > to || span.inner[0] >= span.inner[1]) continue;
      this.spans.set(place, span);
      endLines(at, place);
      OPENING.lastIndex = at = span.to;
    }
    endLines(at, to);
    lines.at(-1).push(to);
    return lines;
  }

  /** The formula or code that `opening` begins at `from`, with its inner part. */
  span(opening, from) {
    const begin = from + opening.length;
    const isBegin = FENCES.has(opening.slice(7, -1));
    const [closer, barrier, kind] = CLOSER[opening] ?? [opening.replace("begin", "end"), PARAGRAPH, "code"];
    if (!CLOSER[opening] && !isBegin && opening[0] !== "`") return null;
    const end = opening === "\\boxed{" ? this.braces().get(begin - 1) ?? Infinity : this.next(closer, begin);
    if (end === Infinity || (!isBegin && end > this.next(barrier, begin)) || end > this.next(CUT, begin)) return null;
    if (opening === "$" && !this.isFormula(begin, end)) return null;
    const whole = opening[1] === "b"; // \boxed and \begin are part of the formula
    const to = end + (typeof closer === "string" ? closer : opening).length;
    return { kind: isBegin ? "display" : kind, to, inner: whole ? [from, to] : [begin, end] };
  }

  fence(from, most) {
    const line = this.text.indexOf("\n", from);
    const begin = line === -1 ? most : Math.min(line, most);
    FENCE_END.lastIndex = begin;
    const end = FENCE_END.exec(this.text);
    const closed = end && end.index < most;
    return { kind: "fence", to: closed ? end.index + end[0].length : most, inner: [Math.min(begin + 1, most), closed ? end.index : most] };
  }

  /** Whether it can be a formula that is between two dollar signs; they can also be amounts of money. */
  isFormula(from, to) {
    const inside = this.text.slice(from, to);
    return !/^\s|\s$/.test(inside) && !/\d/.test(this.text[to + 1] ?? "") && (inside.includes("\\") || !/[A-Za-z]{2} +[A-Za-z]{2}/.test(inside));
  }

  /** Where `what` is next from `at` on. Its place is remembered until it is passed, so that all searches together read the text once. */
  next(what, at) {
    const known = this.following.get(what) ?? -1;
    if (known >= at) return known;
    const pattern = typeof what === "string" ? null : what;
    if (pattern) pattern.lastIndex = at;
    const found = pattern ? pattern.exec(this.text)?.index ?? -1 : this.text.indexOf(what, at);
    this.following.set(what, found === -1 ? Infinity : found);
    return this.following.get(what);
  }

  /** For each opening brace its closing one. */
  braces() {
    if (this.closing) return this.closing;
    this.closing = new Map();
    const open = [];
    for (const { 0: token, index } of this.text.matchAll(/\\[^]|[{}]/g)) {
      if (token === "{") open.push(index);
      else if (token === "}" && open.length) this.closing.set(open.pop(), index);
    }
    return this.closing;
  }

  /** Lines as blocks, in `level` lists whose text is indented by up to `indent` characters. */
  blocks(lines, level, indent) {
    const nodes = [];
    let list = null;
    for (let i = 0; i < lines.length;) {
      const [from, to] = lines[i];
      const line = this.text.slice(from, to);
      const kind = this.kindOf(line, from, level);
      const first = i;
      i += 1;
      if (kind === "item") {
        const marker = ITEM.exec(line)[0];
        while (i < lines.length && this.continues(lines, i, indentOf(line))) i += 1;
        if (!list) nodes.push(list = h("ul"));
        const inner = [[from + marker.length, to], ...lines.slice(first + 1, i)];
        list.append(h("li", {}, h("span", {}, marker.trim().replace(/^[-*+]$/, "•")), " ", h("div", {}, this.blocks(inner, level + 1, marker.length))));
      } else if (kind !== "empty") list = null;
      if (kind === "text") {
        while (i < lines.length && this.kindOf(this.text.slice(...lines[i]), lines[i][0], level) === "text") i += 1;
        const begin = from + Math.min(indentOf(line), indent);
        nodes.push(h("p", {}, this.inline(begin, lines[i - 1][1], indent)));
      }
      if (kind === "heading") nodes.push(h("p", { class: "heading" }, this.inline(from + HEADING.exec(line)[0].length, to)));
      if (kind === "rule") nodes.push(h("hr"));
      if (kind === "code") nodes.push(...this.code(from, to));
    }
    return nodes;
  }

  kindOf(line, from, level) {
    if (!line.trim()) return "empty";
    if (HEADING.test(line)) return "heading";
    if (RULE.test(line)) return "rule";
    if (this.spans.get(from + indentOf(line))?.kind === "fence") return "code";
    return level < LISTS && ITEM.test(line) ? "item" : "text";
  }

  /** Whether line `i` is part of an item that is indented by `indent`. */
  continues(lines, i, indent) {
    const line = this.text.slice(...lines[i]);
    return !line.trim() || indentOf(line) > indent;
  }

  /** A block of code; what follows its opening is its heading. */
  code(from) {
    const place = from + indentOf(this.text.slice(from, from + 200));
    const { inner } = this.spans.get(place);
    const language = this.text.slice(place, inner[0]).replace(/^`+/, "").trim();
    return [language && h("h4", {}, language), h("pre", {}, this.plain(...inner))].filter(Boolean);
  }

  /** Text with formulas, code and emphasis as nodes. */
  inline(from, to, indent = 0) {
    const items = [];
    const open = { "*": null, "**": null }; // the last one that may begin emphasis, as its place among the items
    let at = from;
    const add = (index, end, node) => {
      items.push(...this.items(at, index, indent));
      if (node) items.push({ from: index, to: end, node });
      at = end;
    };
    SPECIAL.lastIndex = from;
    for (let found = SPECIAL.exec(this.text); found && found.index < to; found = SPECIAL.exec(this.text)) {
      const { 0: token, index } = found;
      const span = this.spans.get(index);
      const end = index + token.length;
      if (span) {
        add(index, span.to, this.spanNode(index, span));
        if (span.kind === "display") at = Math.min(span.to + /^[ \t]*\n?/.exec(this.text.slice(span.to, span.to + 9))[0].length, to);
        SPECIAL.lastIndex = at;
      } else if (token.length === 2 && token[0] === "\\" && token[1] !== "\\") {
        add(index, end, document.createTextNode(token[1]));
      } else if (token in EMPHASIS) {
        const [before, after] = [this.text[index - 1] ?? " ", this.text[end] ?? " "];
        if (open[token] !== null && /\S/.test(before) && !/[\p{L}\d]/u.test(after)) {
          add(index, index);
          const [{ from: begin }, ...inner] = items.splice(open[token]);
          add(index, end, h(EMPHASIS[token], {}, gather(inner, this.mark, strongAnswer)));
          items.at(-1).from = begin;
          for (const kind of Object.keys(open)) open[kind] = open[kind] < items.length - 1 ? open[kind] : null;
        } else if (/\S/.test(after) && !/[\p{L}\d]/u.test(before)) {
          add(index, end, document.createTextNode(token));
          open[token] = items.length - 1;
        }
      }
    }
    add(to, to);
    return gather(items, this.mark, strongAnswer);
  }

  spanNode(from, { kind, to, inner: [begin, end] }) {
    if (kind === "code") return h("code", {}, this.plain(begin, end));
    const nodes = new Formula(this.text.slice(begin, end), begin, this.mark).nodes();
    if (!nodes) return h("code", { class: "tex" }, this.plain(from, to));
    const formula = m("math", { display: kind === "display" && "block" }, nodes);
    if (overlap(this.mark, { from, to }) && !formula.querySelector(".answer")) formula.classList.add("answer");
    const isFound = this.query && this.text.slice(from, to).toLowerCase().includes(this.query);
    const shown = isFound ? h("mark", {}, formula) : formula;
    return kind === "display" ? h("span", { class: "display" }, shown) : shown;
  }

  plain(from, to) {
    return gather(this.items(from, to, 0), this.mark, strongAnswer);
  }

  /** Characters as items, parted where the marked part begins and ends and at what is left out. */
  items(from, to, indent) {
    const cuts = [...this.cuts.keys()];
    const places = [this.mark.from, this.mark.to, ...cuts, ...cuts.map((cut) => cut + 1)].filter((place) => from < place && place < to);
    const bounds = [from, ...new Set(places.sort((a, b) => a - b)), to];
    return bounds.slice(1).map((end, i) => {
      const begin = bounds[i];
      const text = this.text.slice(begin, end).replace(/\n[ \t]+/g, (spaces) => `\n${spaces.slice(1 + indent)}`);
      return { from: begin, to: end, node: this.cuts.has(begin) ? leftOut(this.cuts.get(begin)) : h("span", {}, marked(text, this.query)) };
    }).filter((item) => item.from < item.to);
  }
}

const strongAnswer = () => h("strong", { class: "answer" });

const indentOf = (line) => /^[ \t]*/.exec(line)[0].length;
