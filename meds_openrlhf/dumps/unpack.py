"""Rows as programs write them, with the columns that `formats` names: prompt, response, reward.

A function leaves a row as it is that is not of its program, or not in the form that it knows. Raises LeftOut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meds_openrlhf.chat_templates import POLICY_HEADERS
from meds_openrlhf.dumps.values import POLICY, LeftOut, Row, as_number, content_of, is_conversation, is_sequence
from meds_openrlhf.json_text import parse_json

INSPECT_SAMPLE = "inspect_sample"  # the column that holds a sample of Inspect's
_ASKING = ("system", "user", POLICY)
_ATTACHED = "attachment://"


# --- NeMo-RL -----------------------------------------------------------------------------------------------------


def of_messages(row: Row) -> Row:
    """NeMo-RL: values are lists of one; ``content`` has the texts of all messages, in validations their roles too."""
    row = {name: value[0] if is_sequence(value) and len(value) == 1 else value for name, value in row.items()}
    content: Any = row.get("content")
    if not is_sequence(content) or not content:
        return row
    if all(isinstance(text, str) for text in content):
        if not any(content):
            raise LeftOut("without texts, with token ids alone")
        first = _policys_first(content, row)
        roles = ["user"] * first + [(POLICY, "environment")[place % 2] for place in range(len(content) - first)]
        content = [{"role": role, "content": text} for role, text in zip(roles, content)]
    if not is_conversation(content):
        return row
    place = _policys_turn([str(turn.get("role")) for turn in content])
    if not place:
        return row
    return {**row, "prompt": "".join(map(content_of, content[:place])), "response": content[place:]}


def _policys_first(texts: Sequence[str], row: Row) -> int:
    """The place of the policy's first text among all; from there on, every second one is the policy's.

    It follows the header of its turn, with which the prompt ends. Without such a header, the loss mask tells, which is
    1 on the tokens of the policy's messages, and padded with 0: the environment adds its remark after each turn, mostly
    the last included.
    """
    for place, text in enumerate(texts[:-1]):
        if text.rstrip().endswith(POLICY_HEADERS):
            return place + 1
    mask, length = row.get("token_loss_mask"), row.get("input_lengths")
    if not is_sequence(mask):  # of older versions
        return 1
    mask = mask[: length if isinstance(length, int) else None]
    turns = sum(bool(token) and not before for token, before in zip(mask, [0, *mask]))
    behind = len(texts) - 2 * turns
    return behind + (bool(mask[-1]) if mask else 0) if behind > 1 else 1


def _policys_turn(roles: Sequence[str]) -> int:
    """The place of the policy's first turn: the first that its environment replies to, and not an example's."""
    replying = roles[-1] if roles[-1] != POLICY else next((role for role in roles if role not in _ASKING), "user")
    own = [place for place, role in enumerate(roles) if role == POLICY]
    return next((place for place in own if roles[place + 1 : place + 2] == [replying]), own[0] if own else 0)


# --- prime-rl and verifiers ----------------------------------------------------------------------------------------


def traces_of(row: Row) -> Iterable[Row]:
    """An episode's traces, one for each agent; other lines as they are."""
    traces = row.get("traces")
    if not is_sequence(traces) or not traces:
        return (row,)
    shared = {name: row[name] for name in ("run", "task") if name in row}
    return [{**shared, **trace} for trace in traces if isinstance(trace, Mapping)]


def of_trace(row: Row) -> Row:
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
        if (row.get("agent") or {}).get("trainable") is False or row.get("is_trainable") is False:
            raise LeftOut("of an agent that is not trained")
        messages = [{**node["message"], "role": POLICY} if node.get("sampled") else node["message"] for node in nodes]
        replies = [place for place in sampled if content_of(messages[place]) == row.get("root_reply")]
        asked, answered = _path(nodes, sampled[0]), _path(nodes, (replies or sampled)[-1])
        first = next(number for number, place in enumerate(answered) if nodes[place].get("sampled"))
        prompt = [messages[place] for place in asked[:-1]]  # an answer may start over, after a summary
        turns = [messages[place] for place in answered[first:]]
        if not prompt:
            raise LeftOut("without a prompt")
        total, task = _weighted(row.get("rewards")), row.get("task")
        data = task.get("data") if isinstance(task, Mapping) else None
        run = kind_and_step(row)
    except (KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
        raise LeftOut("whose nodes or rewards do not form a trace") from error
    truth = data.get("answer") if isinstance(data, Mapping) else None
    found = {"reward": total, "answer": truth, "step": run[1]}
    return {
        **{name: value for name, value in found.items() if value is not None},
        **row,
        "prompt": prompt,
        "completion": turns,
    }


def _path(nodes: Sequence[Any], place: int) -> list[int]:
    """The places from a root to this node. Raises IndexError if a node is its own ancestor."""
    path: list[int] = []
    at: int | None = place
    while at is not None:
        if len(path) == len(nodes):
            raise IndexError(at)
        path.append(at)
        at = nodes[at].get("parent")
    return path[::-1]


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


def kind_and_step(row: Row) -> tuple[str | None, Any]:
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


# --- slime ---------------------------------------------------------------------------------------------------------


def of_slime(row: Row) -> Row:
    """slime: samples, of which those that were aborted are no responses."""
    if row.get("status") == "aborted":
        raise LeftOut("of an aborted rollout")
    return row


# --- evaluations ---------------------------------------------------------------------------------------------------


def of_skyrl(row: Row) -> Row:
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


def of_lm_eval(row: Row) -> Row:
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


def of_inspect(row: Row) -> Row:
    """Inspect: the input as messages, the model's turns, and the values of all scorers by their names."""
    if INSPECT_SAMPLE not in row:
        return row
    sample = row[INSPECT_SAMPLE]
    try:
        if sample.get("error"):
            raise LeftOut("of a rollout that failed")
        texts = sample.get("attachments")
        asked, target = _attached(sample["input"], texts), sample["target"]
        completion = _attached(sample["output"]["completion"], texts)
        scores = {name: _graded(score["value"]) for name, score in (sample.get("scores") or {}).items()}
        turns = _turns_of(_attached(sample.get("messages"), texts), asked)
    except (KeyError, TypeError, AttributeError) as error:
        raise LeftOut("whose fields are not those of a sample") from error
    if not scores:
        raise LeftOut("without a score")
    return {
        "prompt": [{"role": "user", "content": asked}] if isinstance(asked, str) else asked,
        "response": turns or completion,
        "target": target,
        **scores,
    }


def _attached(value: Any, texts: Any) -> Any:
    """A text or messages, with long texts from elsewhere in the sample. Raises LeftOut for those of other files."""
    if is_conversation(value):
        return [{**turn, "content": _attached(turn.get("content"), texts)} for turn in value]
    if not isinstance(value, str) or not value.startswith(_ATTACHED):
        return value
    found = texts.get(value.removeprefix(_ATTACHED)) if isinstance(texts, Mapping) else None
    if not isinstance(found, str):
        raise LeftOut("whose texts lie elsewhere in the log")
    return found


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
