// Formulas in LaTeX as MathML: a subset of LaTeX. A formula with anything else is not converted at all.

const DEEPEST = 40; // nested groups and arguments
const LONGEST = 5000; // characters of a formula

const words = (text) => text.trim().split(/\s+/);

/** The words of `text` as a table: the first leads to the second, the third to the fourth ... */
const table = (text) => new Map(words(text).flatMap((word, i, all) => (i % 2 ? [] : [[word, all[i + 1]]])));

const LETTERS = table(`alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ iota ι kappa κ lambda λ mu μ nu ν xi ξ pi π rho ρ sigma σ
  tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Phi Φ Psi Ψ Omega Ω infty ∞ emptyset ∅
  varnothing ∅ ell ℓ partial ∂ nabla ∇ Re ℜ Im ℑ triangle △ square □ Box □ blacksquare ■ degree ° angle ∠ forall ∀ exists ∃ neg ¬ lnot ¬
  ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ checkmark ✓ prime ′ % % $ $ # # & & _ _`);
const OPERATORS = table(`cdot ⋅ times × div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ otimes ⊗ cup ∪ cap ∩ setminus ∖ wedge ∧ land ∧ vee ∨ lor ∨
  le ≤ leq ≤ leqslant ⩽ ge ≥ geq ≥ geqslant ⩾ lt < gt > ne ≠ neq ≠ equiv ≡ sim ∼ simeq ≃ approx ≈ cong ≅ propto ∝ ll ≪ gg ≫ in ∈ notin ∉ subset ⊂
  subseteq ⊆ supset ⊃ supseteq ⊇ mid ∣ nmid ∤ parallel ∥ perp ⊥ to → rightarrow → longrightarrow ⟶ leftarrow ← leftrightarrow ↔ Rightarrow ⇒ implies ⟹
  Longrightarrow ⟹ Leftarrow ⇐ iff ⟺ Leftrightarrow ⇔ mapsto ↦ uparrow ↑ downarrow ↓ therefore ∴ because ∵ colon : bmod mod
  sum ∑ prod ∏ bigcup ⋃ bigcap ⋂ int ∫ iint ∬ oint ∮`);
const DELIMITERS = table(`( ( ) ) [ [ ] ] | | / / \\{ { \\} } \\| ‖ \\lfloor ⌊ \\rfloor ⌋ \\lceil ⌈ \\rceil ⌉ \\langle ⟨ \\rangle ⟩ \\lvert | \\rvert |
  \\vert | \\Vert ‖ \\lbrace { \\rbrace } \\backslash \\ . .`);
const ACCENTS = table("bar ¯ hat ^ widehat ^ vec → overrightarrow → tilde ~ dot ˙ ddot ¨ overbrace ⏞");
const SPACES = table(", 0.17em : 0.22em ; 0.28em ! -0.17em quad 1em qquad 2em");
const FENCES = table(`matrix .. pmatrix () bmatrix [] Bmatrix {} vmatrix || cases {. array .. aligned .. align .. align* .. split .. gathered .. gather ..
  gather* .. equation .. equation* ..`);
const STYLES = table("mathrm upright mathbf bold boldsymbol bold mathbb double mathcal script");
const LETTERLIKE = table("doubleC ℂ doubleN ℕ doubleP ℙ doubleQ ℚ doubleR ℝ doubleZ ℤ scriptF ℱ scriptL ℒ");
const TEXTS = table("text plain textrm plain mbox plain textbf bold textit italic emph italic");
const FUNCTIONS = new Set(words("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp deg lim max min sup inf gcd lcm det"));
const STACKED = new Set(words("\\sum \\prod \\bigcup \\bigcap \\lim \\max \\min \\sup \\inf \\gcd \\overbrace \\underbrace"));
const SILENT = new Set(words("displaystyle textstyle nonumber notag"));
const CLOSERS = new Set(["", "}", "&", "\\\\", "\\right", "\\end"]);
const TOKEN = /\\(?:[a-zA-Z]+|[^])|\d+(?:,\d{3}(?!\d))*(?:\.\d+)?|\.\d+|[^]/uy;

const space = (width) => m("mspace", { width });
const operatorName = (name) => m("mo", { form: "prefix", lspace: "0.1em", rspace: "0.17em", movablelimits: "true" }, name);
const delimiter = (text, stretchy) => text !== "." && m("mo", { stretchy: String(stretchy), lspace: "0", rspace: "0" }, text);
const fenced = ([open, close], inner) => m("mrow", {}, delimiter(open, true), inner, delimiter(close, true));

/** Commands with arguments, as functions of the formula that is being read. */
const COMMANDS = new Map(Object.entries({
  frac: (read) => m("mfrac", {}, read.argument(), read.argument()),
  dfrac: (read) => m("mstyle", { displaystyle: "true" }, COMMANDS.get("frac")(read)),
  binom: (read) => fenced("()", m("mfrac", { linethickness: "0" }, read.argument(), read.argument())),
  sqrt: (read) => {
    const degree = read.peek() === "[" && read.take() && read.group("]");
    return degree ? m("mroot", {}, read.argument(), degree) : m("msqrt", {}, read.argument());
  },
  boxed: (read) => m("mrow", { class: "boxed" }, m("mstyle", { displaystyle: "true" }, /^[A-Za-z][A-Za-z' .,-]*[A-Za-z]{2}$/.test(read.ahead() ?? "") ? read.words("plain") : read.argument())),
  overline: (read) => m("mrow", { class: "over" }, read.argument()),
  underline: (read) => m("mrow", { class: "under" }, read.argument()),
  underbrace: (read) => m("munder", {}, read.argument(), m("mo", {}, "⏟")),
  overset: (read) => ((over) => m("mover", {}, read.argument(), over))(read.argument()),
  underset: (read) => ((under) => m("munder", {}, read.argument(), under))(read.argument()),
  phantom: (read) => m("mphantom", {}, read.argument()),
  operatorname: (read) => operatorName(read.name()),
  pmod: (read) => [space("0.5em"), fenced("()", [operatorName("mod"), read.argument()])],
  tag: (read) => [space("2em"), "(", read.words("plain"), ")"],
  left: (read) => [read.edge(), read.row(), read.take() === "\\right" ? read.edge() : read.fail("\\left")],
  begin: (read) => read.environment(read.name()),
}));
for (const [name, same] of table("tfrac frac cfrac dfrac dbinom binom tbinom binom stackrel overset fbox boxed")) COMMANDS.set(name, COMMANDS.get(same));

/** Reads a formula from its source, which begins at `base` of the text with the marked part `mark`. */
class Formula {
  constructor(source, base, mark) {
    Object.assign(this, { source, base, mark, at: 0, start: 0, depth: 0, style: null, isFirst: true, unknown: null });
    if (source.length > LONGEST) this.fail("length");
  }

  /** The nodes of the formula, or null if something in it is not known. */
  nodes() {
    const nodes = this.row();
    if (this.peek()) this.fail(this.peek());
    return this.unknown === null ? nodes : null;
  }

  fail(what) {
    this.unknown ??= what;
    this.at = this.source.length;
    return m("mrow");
  }

  /** The next token, which begins at `start`; empty at the end. */
  peek() {
    while (this.source[this.at]?.trim() === "") this.at += 1;
    this.start = TOKEN.lastIndex = this.at;
    return TOKEN.exec(this.source)?.[0] ?? "";
  }

  take() {
    const token = this.peek();
    this.at += token.length;
    return token;
  }

  /** The nodes up to a token that closes a group, or up to `closer`. */
  row(closer = "") {
    const items = [];
    this.depth += 1;
    if (this.depth > DEEPEST) this.fail("depth");
    for (let next = this.peek(); !CLOSERS.has(next) && next !== closer; next = this.peek()) {
      const before = items.at(-1)?.node;
      this.isFirst = !before || (before.localName === "mo" && !")]}|!".includes(before.textContent));
      const from = this.base + this.start;
      const node = this.withScripts(next, "^_'".includes(next) ? m("mrow") : this.atom());
      items.push({ from, to: this.base + this.at, node });
    }
    this.depth -= 1;
    return gather(items, this.mark, () => m("mrow", { class: "answer" }));
  }

  digit(digit) {
    this.at += 1;
    return this.leaf("mn", {}, digit);
  }

  group(closer) {
    const nodes = this.row(closer);
    if (nodes.length === 1 && nodes[0].localName === "mo") fill(nodes[0], { lspace: "0", rspace: "0" }, []); // as in 10{,}000
    return this.take() === closer ? m("mrow", {}, nodes) : this.fail("group");
  }

  /** The argument of a command: a group, or a single digit, letter or command. */
  argument() {
    const next = this.peek();
    this.depth += 1;
    const none = CLOSERS.has(next) || next === "^" || next === "_" || this.depth > DEEPEST;
    const node = none ? this.fail("argument") : /^\d/.test(next) ? this.digit(next[0]) : this.atom();
    this.depth -= 1;
    return m("mrow", {}, node);
  }

  /** The characters of the group ahead; null if it has groups itself. */
  ahead() {
    const end = this.source.indexOf("}", this.at);
    const text = this.source.slice(this.at + 1, end);
    return this.peek() === "{" && end !== -1 && !text.includes("{") ? text : null;
  }

  /** The name in a group. */
  name() {
    const text = this.ahead() ?? "\\";
    if (text.includes("\\")) this.fail("name");
    this.at += text.length + 2;
    return text;
  }

  /** A group of words, where spaces count. */
  words(kind) {
    const text = this.ahead();
    if (text === null || /[\\$]/.test(text.replace(/\\[ %$#&_,]/g, ""))) return this.fail("text");
    this.start = this.at + 1;
    this.at += text.length + 2;
    const shown = text.replace(/\\([%$#&_])/g, "$1").replace(/\\[ ,]|\s/g, "\u00a0");
    return this.leaf("mtext", { class: kind }, shown, this.at - 1);
  }

  /** A node of characters, which is marked if the mark has a part of them. */
  leaf(tag, attributes, text, to = this.at) {
    const node = m(tag, attributes, text);
    if (overlap({ from: this.base + this.start, to: this.base + to }, this.mark)) node.classList.add("answer");
    return node;
  }

  /** The base with its superscripts and subscripts. */
  withScripts(token, base) {
    const [subs, sups] = [[], []];
    for (let next = this.peek(); "^_'".includes(next) && next; next = this.peek()) {
      const scripts = next === "_" ? subs : sups;
      this.take();
      if (next === "'") scripts.push(m("mo", {}, "′"));
      else scripts.push(scripts.some((one) => one.localName === "mrow") ? this.fail("double script") : this.argument());
    }
    const [sub, sup] = [subs, sups].map((scripts) => scripts.length > 0 && m("mrow", {}, scripts));
    const names = STACKED.has(token) ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    return sub || sup ? m(names[sub && sup ? 2 : sub ? 0 : 1], {}, base, sub, sup) : base;
  }

  /** A single symbol, group or command. */
  atom() {
    const token = this.take();
    if (token === "{") return this.group("}");
    if (/^\.?\d/.test(token)) return this.leaf("mn", {}, token);
    if (DELIMITERS.has(token)) return this.leaf("mo", { stretchy: "false", lspace: "0", rspace: "0" }, DELIMITERS.get(token));
    if (token[0] === "\\") return this.command(token.slice(1));
    if (/[a-zA-Z\p{Script=Greek}]/u.test(token)) return this.letter(token);
    if ("+-=<>,:;*!".includes(token)) return this.operator(token === "-" ? "−" : token);
    return token === "~" ? space("0.33em") : this.leaf("mtext", {}, token);
  }

  /** An operator, which is a sign where nothing is before it. */
  operator(text) {
    return this.leaf("mo", { form: this.isFirst && "+−±∓".includes(text) && "prefix" }, text);
  }

  letter(letter) {
    if (this.style === null) return this.leaf("mi", {}, letter);
    const begin = { double: 0x1d538, script: 0x1d49c }[this.style]; // of A, in Unicode
    if (begin && !/[A-Z]/.test(letter)) return this.fail(letter);
    const shown = begin ? LETTERLIKE.get(this.style + letter) ?? String.fromCodePoint(begin + letter.charCodeAt(0) - 65) : letter;
    return this.leaf("mi", { mathvariant: "normal", class: this.style }, shown);
  }

  command(name) {
    if (LETTERS.has(name)) return this.leaf("mi", { mathvariant: /^[A-Z]/.test(name) && "normal" }, LETTERS.get(name));
    if (OPERATORS.has(name)) return this.operator(OPERATORS.get(name));
    if (SPACES.has(name) || name === " ") return space(SPACES.get(name) ?? "0.25em");
    if (SILENT.has(name)) return m("mrow");
    if (FUNCTIONS.has(name)) return operatorName(name);
    if (/^(middle|[bB]igg?[lrm]?)$/.test(name)) return this.edge(false) || this.fail(name);
    if (TEXTS.has(name)) return this.words(TEXTS.get(name));
    if (STYLES.has(name)) return this.styled(STYLES.get(name));
    if (COMMANDS.has(name)) return m("mrow", {}, COMMANDS.get(name)(this));
    if (ACCENTS.has(name)) return m("mover", { accent: "true" }, this.argument(), m("mo", { stretchy: String(name.length > 5) }, ACCENTS.get(name)));
    return this.fail(`\\${name}`);
  }

  styled(style) {
    const before = this.style;
    this.style = style;
    const node = this.argument();
    this.style = before;
    return node;
  }

  /** A delimiter after \left, \right and the like; none for a full stop. */
  edge(stretchy = true) {
    const token = this.take();
    return DELIMITERS.has(token) ? delimiter(DELIMITERS.get(token), stretchy) : this.fail("delimiter");
  }

  /** Rows and columns up to the \end of an environment. */
  environment(name) {
    if (!FENCES.has(name)) return this.fail(`\\begin{${name}}`);
    const bars = name === "array" ? this.name().split(/[lcr]/).map((between) => between.includes("|")) : [];
    const rows = [];
    let closer = "\\\\";
    while (closer === "\\\\") {
      let line = false;
      for (; this.peek() === "\\hline"; this.take()) line = true;
      const cells = [];
      do {
        cells.push(m("mtd", { class: bars[cells.length] && "bar" }, this.row()));
        closer = this.take();
      } while (closer === "&");
      rows.push(m("mtr", { class: line && "line" }, cells));
    }
    if (closer !== "\\end" || this.name() !== name) return this.fail(name);
    const kind = /^(align|split)/.test(name) ? "aligned" : name === "cases" && "cases";
    return fenced(FENCES.get(name), m("mtable", { class: kind, displaystyle: kind === "aligned" && "true" }, rows));
  }
}
