"""What a line of a dump holds, for each trainer that writes dumps: which columns are prompt, response and reward.

Names and meanings are those of the programs' sources, whose versions docs/atlas.md has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.values import (
    POLICY,
    LeftOut,
    Row,
    as_number,
    content_of,
    is_conversation,
    is_sequence,
    label,
    messages_of,
    number,
    prompt_text,
    required,
    response_text,
    step_number,
    writable,
)
from meds_openrlhf.json_text import parse_json

COLUMNS = ("prompt", "response", "reward", "truth", "answer", "step")  # their roles
INSPECT_SAMPLE = "inspect_sample"  # the column that holds a sample of Inspect's
LOOK = 256  # lines of a file by which its format is recognized: in the first, a value may be null


@dataclass(frozen=True)
class Rollout:
    """A response to a prompt.

    ``messages`` are the prompt's roles and contents, if it is a conversation; ``prompt`` is their text. ``answer`` is
    the final answer that the trainer's own grader read, where it says so.
    """

    prompt: str
    response: str
    reward: float
    truth: str | None = None
    step: int | None = None
    messages: tuple[dict[str, str], ...] = ()
    answer: str | None = None


@dataclass(frozen=True)
class Format:
    """The columns of a program's dump by role, each with its possible names, the preferred one first.

    ``marks``: columns of this program alone, any of which identifies it; without marks, the columns by role do.
    ``split`` makes several rows of a line, ``unpack`` gives a row the columns named here, and ``evaluates`` says
    whether it is of an evaluation, as all rows of an ``evaluation`` are. ``step_names``: a file's name that says its
    step, beside ``step_12``. ``unread``: what a program's files are that are recognized, but not read.
    """

    prompt: tuple[str, ...] = ("prompt",)
    response: tuple[str, ...] = ("response",)
    reward: tuple[str, ...] = ()  # none: the only column of numbers
    truth: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    step: tuple[str, ...] = ("step",)
    marks: tuple[str, ...] = ()
    split: Callable[[Row], Iterable[Row]] = lambda row: (row,)
    unpack: Callable[[Row], Row] = dict
    evaluates: Callable[[Row], bool] | None = None
    evaluation: bool = False
    step_names: str | None = None
    unread: str = ""

    def is_evaluation(self, row: Row) -> bool:
        """Whether a row is of an evaluation, beside those of a training."""
        return self.evaluation or (self.evaluates is not None and self.evaluates(row))

    def rollout(self, row: Row) -> Rollout:
        """The rollout of a row, of a `chosen` format. Raises LeftOut."""
        columns = columns_of(self, row)
        prompt = required(columns, _first(columns, self.prompt))
        response = required(columns, _first(columns, self.response))
        step = _first(columns, self.step)
        return Rollout(
            prompt=prompt_text(prompt),
            response=response_text(response),
            reward=number(columns, self.reward[0]),
            truth=label(columns.get(_first(columns, self.truth))),
            step=None if columns.get(step) is None else step_number(columns, step),
            messages=messages_of(prompt),
            answer=_answer(columns.get(_first(columns, self.answer))),
        )


@dataclass
class Look:
    """What the first rows of a file hold in a format: its columns, which of them are numbers, and its evaluations."""

    name: str
    form: Format
    columns: dict[str, None] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)  # with a value in some row
    numbers: set[str] = field(default_factory=set)
    rows: int = 0
    left_out: int = 0
    evaluations: int = 0

    def add(self, line: Row) -> None:
        """Look at one more line."""
        for row in self.form.split(line):
            self.rows += 1
            self.evaluations += self.form.is_evaluation(row)
            try:
                columns = columns_of(self.form, row)
            except LeftOut:
                self.left_out += 1
                continue
            self.columns |= dict.fromkeys(columns)
            self.present |= {name for name, value in columns.items() if value is not None}
            named = self.form.reward
            self.numbers |= {
                name
                for name, value in columns.items()
                # A text counts as a number where the column is known to be the reward.
                if as_number(value) is not None and (name in named or not isinstance(value, str))
            }

    @property
    def fits(self) -> bool:
        """Whether these rows have a prompt, a response and, as far as they are rollouts, a reward."""
        if self.form.marks and self.rows and self.left_out == self.rows:
            return True
        return self.has_texts and bool(self.rewards)

    @property
    def is_sure(self) -> bool:
        """Whether more rows would change nothing."""
        return self.fits and self.form.reward[:1] == self.rewards[:1] and not self.may_hold_training

    @property
    def may_hold_training(self) -> bool:
        """Whether there were evaluations alone, and rollouts of the training may follow."""
        return self.form.evaluates is not None and 0 < self.rows == self.evaluations

    @property
    def rewards(self) -> tuple[str, ...]:
        """The columns that may be the reward, the preferred one first."""
        numbers = [name for name in self.columns if name in self.numbers]
        if not self.form.reward:
            roles = ("prompt", "response", "truth", "answer", "step", "marks")
            taken = {name for role in roles for name in getattr(self.form, role)}
            return tuple(name for name in numbers if name not in taken)
        named = tuple(name for name in self.form.reward if name in self.numbers)
        return named or tuple(name for name in numbers if name.rpartition(".")[0] in self.form.reward)

    @property
    def has_texts(self) -> bool:
        """Whether these rows have a prompt and a response."""
        return self._has("prompt") and self._has("response")

    def _has(self, role: str) -> bool:
        return any(name in self.present for name in getattr(self.form, role))


def columns_of(form: Format, row: Row) -> Row:
    """A row's columns; of a mapping, such as a reward of several parts, the parts as well, as ``reward.PART``."""
    row = form.unpack(row)
    parts = {f"{name}.{part}": value[part] for name, value in row.items() if isinstance(value, dict) for part in value}
    return {**row, **parts}


def recognized(lines: Iterable[Row], wanted: str, columns: Mapping[str, str]) -> Look | None:
    """The first format that the lines fit, of all or the ``wanted`` one alone; None if they fit none.

    ``columns`` replaces names of columns.
    """
    named = {role: (column,) for role, column in columns.items()}
    looks: dict[str, Look] = {}
    for seen, line in enumerate(lines):
        first = next((look for look in _in_order(looks) if look.has_texts), None)
        if (first.is_sure if first else False) or (seen >= LOOK and not (first and first.may_hold_training)):
            break
        for name, form in FORMATS.items():
            if wanted == name or (wanted == "auto" and _may_be(name, form, line, named)):
                looks.setdefault(name, Look(name, replace(form, **named))).add(line)  # type: ignore[arg-type]
    return next((look for look in _in_order(looks) if look.fits or look.form.unread), None)


def _may_be(name: str, form: Format, line: Row, named: Mapping[str, object]) -> bool:
    """Whether a line may be of a format. Columns that the user names are no trainer's, but for its own marks."""
    if form.marks:
        return any(mark in line for mark in form.marks)
    return name == "plain" or not {"prompt", "response"} & named.keys()


def chosen(looks: Sequence[Look], source: str) -> Format:
    """The format of all files of a program, with the column of the reward that all have.

    Raises ConfigError if that is not a single one.
    """
    form, found = looks[0].form, [look.rewards for look in looks if look.rewards]
    of_any = tuple(dict.fromkeys(name for names in found for name in names))
    of_all = tuple(name for name in of_any if all(name in names for names in found))
    if form.reward and of_any and of_any[0] in form.reward:
        return replace(form, reward=(of_all or of_any)[:1])
    if len(of_any) > 1:
        hint = f"has several columns of numbers ({', '.join(of_any)}). Choose one with --columns reward=NAME."
        raise ConfigError("FILES", source, hint)
    return replace(form, reward=of_any or form.reward or ("reward",))


def columns_found(lines: Iterable[Row]) -> str:
    """The columns of some lines, for a message; of a trainer's known wrapping, those inside."""
    found: dict[str, None] = {}
    for line in lines:
        for form in FORMATS.values():
            if form.marks and any(mark in line for mark in form.marks):
                look = Look("", form)
                look.add(line)
                found |= look.columns
        found |= dict.fromkeys(map(str, line))
    return ", ".join(list(found)[:30])


def _in_order(looks: Mapping[str, Look]) -> list[Look]:
    return [looks[name] for name in FORMATS if name in looks]


def _answer(value: Any) -> str | None:
    """The answer that a trainer's grader read, of which verl writes [INVALID] if it found none."""
    is_known = isinstance(value, (str, int, float)) and value not in ("", "[INVALID]")
    return writable(str(value)) if is_known else None


def _first(row: Row, names: Sequence[str]) -> str:
    """The first of the names with a value in this row."""
    for name in names:
        if row.get(name) is not None:
            return name
    return names[0] if names else ""


# --- NeMo-RL -----------------------------------------------------------------------------------------------------


def _of_messages(row: Row) -> Row:
    """NeMo-RL: values are lists of one; ``content`` has the texts of all messages, in validations their roles too."""
    row = {name: value[0] if is_sequence(value) and len(value) == 1 else value for name, value in row.items()}
    content: Any = row.get("content")
    if not is_sequence(content) or not content:
        return row
    if all(isinstance(text, str) for text in content):
        if not any(content):
            raise LeftOut("without texts, with token ids alone")
        first = _policys_first(len(content), row)
        roles = ["user"] * first + [(POLICY, "environment")[place % 2] for place in range(len(content) - first)]
        content = [{"role": role, "content": text} for role, text in zip(roles, content)]
    if not is_conversation(content):
        return row
    place = next((place for place, turn in enumerate(content) if turn.get("role") == POLICY), 0)
    if not place:
        return row
    return {**row, "prompt": "".join(map(content_of, content[:place])), "response": content[place:]}


def _policys_first(texts: int, row: Row) -> int:
    """The place of the policy's first text among all; from there on, every second one is the policy's.

    The environment adds its remark after each turn, mostly the last included. The loss mask is 1 on the tokens of the
    policy's messages, and padded with 0. It is needed only if the prompt has several messages.
    """
    mask, length = row.get("token_loss_mask"), row.get("input_lengths")
    if not is_sequence(mask):  # of older versions
        return 1
    mask = mask[: length if isinstance(length, int) else None]
    turns = sum(bool(token) and not before for token, before in zip(mask, [0, *mask]))
    behind = texts - 2 * turns
    return behind + (bool(mask[-1]) if mask else 0) if behind > 1 else 1


# --- prime-rl and verifiers ----------------------------------------------------------------------------------------


def _traces_of(row: Row) -> Iterable[Row]:
    """An episode's traces, one for each agent; other lines as they are."""
    traces = row.get("traces")
    if not is_sequence(traces) or not traces:
        return (row,)
    shared = {name: row[name] for name in ("run", "task") if name in row}
    return [{**shared, **trace} for trace in traces if isinstance(trace, Mapping)]


def _of_trace(row: Row) -> Row:
    """Messages in a graph: the path to the last one that the policy generated, which begins with its prompt."""
    if "traces" in row:
        raise LeftOut("of a rollout that failed")
    nodes = row.get("nodes")
    if not is_sequence(nodes):
        return row
    sampled = [place for place, node in enumerate(nodes) if isinstance(node, Mapping) and node.get("sampled")]
    if row.get("errors") or not sampled:
        raise LeftOut("of a rollout that failed")
    try:
        if (row.get("agent") or {}).get("trainable") is False:
            raise LeftOut("of an agent that is not trained")
        path: list[int] = []
        place: int | None = sampled[-1]
        while place is not None:
            if len(path) == len(nodes):
                raise IndexError("a node is its own ancestor")
            path.append(place)
            place = nodes[place].get("parent")
        path.reverse()
        first = next(place for place, node in enumerate(path) if nodes[node].get("sampled"))
        turns = [
            {**nodes[node]["message"], "role": POLICY} if nodes[node].get("sampled") else nodes[node]["message"]
            for node in path
        ]
        total, task = _weighted(row.get("rewards")), row.get("task")
        data = task.get("data") if isinstance(task, Mapping) else None
        run = _kind_and_step(row)
    except (KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
        raise LeftOut("whose nodes or rewards do not form a trace") from error
    truth = data.get("answer") if isinstance(data, Mapping) else None
    found = {"reward": total, "answer": truth, "step": run[1]}
    return {
        **{name: value for name, value in found.items() if value is not None},
        **row,
        "prompt": turns[:first],
        "completion": turns[first:],
    }


def _weighted(rewards: Any) -> float | None:
    """The sum of a trace's rewards, numbers or ``{score, weight}``; None if it was not scored."""
    values = [
        (part.get("score") or 0.0) * (1.0 if part.get("weight") is None else part["weight"])
        if isinstance(part, Mapping)
        else part
        for part in (rewards or {}).values()
        if part is not None
    ]
    return sum(values) if values else None


def _kind_and_step(row: Row) -> tuple[str | None, Any]:
    """Whether a trace is of the training or of an evaluation, and the step that the training was at."""
    run, info = row.get("run"), row.get("info")
    work = run.get("work") if isinstance(run, Mapping) else None
    work = work if isinstance(work, Mapping) else {}
    kinds = (
        info.get("kind") if isinstance(info, Mapping) else None,
        work.get("type"),
        run.get("type") if isinstance(run, Mapping) else None,
    )
    return next((kind for kind in kinds if isinstance(kind, str)), None), work.get("step")


# --- evaluations ---------------------------------------------------------------------------------------------------


def _of_skyrl(row: Row) -> Row:
    """SkyRL: a score may be a list of one for each token; the label is among the columns of the data set."""
    row, extras = dict(row), row.get("env_extras")
    score = row.get("score")
    if is_sequence(score) and all(isinstance(part, (int, float)) for part in score):
        row["score"] = sum(score)
    for name in ("reward_model", "reward_spec"):
        spec = extras.get(name) if isinstance(extras, Mapping) else None
        if isinstance(spec, Mapping):
            row.setdefault("ground_truth", spec.get("ground_truth"))
    return row


def _of_lm_eval(row: Row) -> Row:
    """lm-eval: the prompt as sent, the first response, the metrics that the task names, and the texts of its problem.

    If a request is repeated, lm-eval gives all its responses a single score: that of the first, by its default filter.
    """
    if "filtered_resps" not in row:
        return row
    try:
        request, responses, scored = row["arguments"]["gen_args_0"], row["resps"][0], row["filtered_resps"][0]
        prompt, response, generated = request["arg_0"], responses[0], isinstance(request["arg_1"], dict)
        problem = {name: value for name, value in row["doc"].items() if isinstance(value, str)}
        metrics = {name: row[name] for name in row["metrics"]}
        if is_sequence(prompt) and isinstance(prompt[0], str):  # a conversation for an API, as JSON
            prompt = parse_json(prompt[0])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise LeftOut("whose fields are not those of lm-eval") from error
    if not generated:
        raise LeftOut("of a multiple-choice task")
    if is_sequence(scored) and len(scored) > 1:
        raise LeftOut("with a single score for several responses")
    return {"prompt": prompt, "response": response, "target": row.get("target"), "doc": problem, **metrics}


def _of_inspect(row: Row) -> Row:
    """Inspect: the input as messages, the model's turns, and the values of all scorers by their names."""
    if INSPECT_SAMPLE not in row:
        return row
    sample = row[INSPECT_SAMPLE]
    try:
        if sample.get("error"):
            raise LeftOut("of a rollout that failed")
        asked, target, completion = sample["input"], sample["target"], sample["output"]["completion"]
        scores = {name: _graded(score["value"]) for name, score in (sample.get("scores") or {}).items()}
        turns = _turns_of(sample.get("messages"), asked)
    except (KeyError, TypeError, AttributeError) as error:
        raise LeftOut("whose fields are not those of a sample") from error
    if not scores:
        raise LeftOut("without a score")
    if isinstance(completion, str) and completion.startswith("attachment://"):
        raise LeftOut("whose texts lie elsewhere in the log")
    return {
        "prompt": [{"role": "user", "content": asked}] if isinstance(asked, str) else asked,
        "response": turns or completion,
        "target": target,
        **scores,
    }


def _turns_of(messages: Any, asked: Any) -> Sequence[Row] | None:
    """The model's messages and the replies to them, if there are several of its own; it may have been shown others."""
    if not is_conversation(messages):
        return None
    shown = sum(turn.get("role") == POLICY for turn in asked) if is_conversation(asked) else 0
    own = [place for place, turn in enumerate(messages) if turn.get("role") == POLICY][shown:]
    return messages[own[0] :] if len(own) > 1 else None


def _graded(value: Any) -> Any:
    """A score as a number where Inspect itself reads one, also in one of several parts."""
    if isinstance(value, dict):
        return {name: _graded(part) for name, part in value.items()}
    found = as_number(value)
    return value if found is None else found


# In the order in which they are tried: by their own columns, then by the names of prompt, response and reward.
FORMATS = {
    "nemo-rl": Format(reward=("rewards",), marks=("content",), unpack=_of_messages),
    "slime": Format(reward=("reward",), truth=("label",), step=("rollout_id",), marks=("rollout_id",)),
    "prime-rl": Format(
        response=("completion",), reward=("reward",), truth=("answer",),
        marks=("nodes", "traces", "example_id", "trajectory"),
        split=_traces_of, unpack=_of_trace, evaluates=lambda row: _kind_and_step(row)[0] == "eval",
    ),
    "trl": Format(response=("completion",), marks=("advantage",)),
    "areal": Format(
        response=("completion",), reward=("reward",), step=("tail_version",), marks=("tail_version", "head_version"),
    ),
    "skyrl": Format(
        ("input_prompt",), ("output_response",), ("score",), ("ground_truth",), marks=("env_class", "env_extras"),
        unpack=_of_skyrl, evaluation=True,
    ),
    "lm-eval": Format(
        truth=("target",), marks=("filtered_resps",), unpack=_of_lm_eval, evaluation=True
    ),
    "inspect": Format(
        truth=("target",), marks=(INSPECT_SAMPLE,), unpack=_of_inspect, evaluation=True
    ),
    "rllm": Format(marks=("trajectories",), unread="episodes of rLLM"),
    "torchtitan": Format(marks=("is_validation",), unread="samples of torchtitan"),
    "open-instruct": Format(marks=("prompt_tokens",), unread="traces of open-instruct, which have no texts"),
    "tinker": Format(marks=("traj_idx",), unread="summaries of tinker-cookbook, which have no texts"),
    "verl": Format(
        ("input",), ("output",), ("acc", "score"), ("gts",), ("pred",), step_names=r"^(\d{1,9})\.",
    ),
    "openrlhf": Format(("input",), ("output",), ("reward",)),
    "plain": Format(
        ("prompt", "question", "problem", "input"), ("response", "completion", "output"),
        ("reward", "score", "correct"), ("ground_truth", "answer", "label"),
    ),
}  # fmt: skip
