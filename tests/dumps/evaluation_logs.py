"""Write the sample logs of tests/dumps/data with lm-evaluation-harness and Inspect, which no extra installs.

With lm-eval 0.4.13 and inspect-ai 0.3.285, outside a git repository:
``cd /tmp && PYTHONPATH=REPOSITORY python -m tests.dumps.evaluation_logs REPOSITORY/tests/dumps/data``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROBLEMS = ({"question": "2+2", "answer": "4"}, {"question": "3+4", "answer": "7"})
REPLIES = {"2+2": ("\\boxed{4}", "\\boxed{5}"), "3+4": ("\\boxed{8}", "\\boxed{7}")}  # to each of two requests
CHOICES = ["4", "7"]
METRICS = ("exact", "short")


def write_lm_eval(folder: Path) -> None:
    """``samples_sums_*.jsonl``, three filters over two responses, and ``samples_choice_*.jsonl``, without any."""
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.models.dummy import DummyLM

    class Model(DummyLM):
        def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
            asked: list[str] = []
            replies = []
            for request in requests:
                question = request.doc["question"]
                replies.append(REPLIES[question][asked.count(question)])
                asked.append(question)
            return replies

    problems = folder / "problems.jsonl"
    problems.parent.mkdir(parents=True, exist_ok=True)
    problems.write_text("".join(f"{json.dumps(problem)}\n" for problem in PROBLEMS))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(problems)}}, "test_split": "test"}
    asking = {**data, "doc_to_text": "Question: {{question}}\nAnswer:"}
    boxed = {"function": "regex", "regex_pattern": "\\\\boxed{(.*)}"}
    filters = {
        "whole": [{"function": "take_first"}],
        "boxed": [boxed, {"function": "take_first"}],
        "both": [boxed, {"function": "take_first_k", "k": 2}],
    }
    sums = {
        **asking, "task": "sums", "output_type": "generate_until", "doc_to_target": "{{answer}}", "repeats": 2,
        "generation_kwargs": {"until": ["\n\n"]}, "process_results": metrics,
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in METRICS],
        "filter_list": [{"name": name, "filter": steps} for name, steps in filters.items()],
    }  # fmt: skip
    choice = {
        **asking, "task": "choice", "output_type": "multiple_choice", "doc_to_choice": CHOICES,
        "doc_to_target": lambda problem: CHOICES.index(problem["answer"]),
    }  # fmt: skip
    tracker = EvaluationTracker(output_path=str(folder))
    tasks = [ConfigurableTask(config=config) for config in (sums, choice)]
    results = simple_evaluate(Model(), tasks=tasks, log_samples=True, evaluation_tracker=tracker, bootstrap_iters=0)
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task, lines in samples.items():
        tracker.save_results_samples(task_name=task, samples=lines)
    problems.unlink()


def metrics(problem: dict[str, str], results: list[str | list[str]]) -> dict[str, float]:
    """Two metrics of the filtered response or, if the filter keeps several, of all together."""
    kept = results[0] if isinstance(results[0], list) else results
    return {
        "exact": float(any(text == problem["answer"] for text in kept)),
        "short": float(all(len(text) < 2 for text in kept)),
    }


def write_inspect(folder: Path) -> None:
    """Logs with two scorers: a ``.eval`` of two epochs of two samples, and a ``.json`` of one sample."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageSystem,
        ChatMessageUser,
        GenerateConfig,
        ModelOutput,
        ModelUsage,
        get_model,
    )
    from inspect_ai.scorer import Score, Scorer, Target, includes, mean, scorer
    from inspect_ai.solver import TaskState, generate

    @scorer(metrics=[mean()])
    def length() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            return Score(value=len(state.output.completion))

        return score

    def model_replies():  # type: ignore[no-untyped-def]
        asked: list[str] = []

        def reply(messages: list[ChatMessage], tools: object, choice: object, config: GenerateConfig) -> ModelOutput:
            question = messages[-1].text
            output = ModelOutput.from_content("mockllm/model", REPLIES[question][asked.count(question)])
            output.usage = ModelUsage()  # counting tokens would download a tokenizer
            asked.append(question)
            return output

        return reply

    talk = [ChatMessageSystem(content="be brief"), ChatMessageUser(content="3+4")]
    samples = [Sample("2+2", target="4"), Sample(talk, target=["7", "seven"])]
    for log_format, epochs in (("eval", 2), ("json", 1)):
        dataset = samples[:epochs]
        task = Task(dataset=dataset, solver=generate(), scorer=[includes(), length()], epochs=epochs, name="sums")
        model = get_model("mockllm/model", custom_outputs=model_replies(), memoize=False)
        where = {"log_dir": str(folder), "log_format": log_format, "log_realtime": False, "display": "none"}
        eval(task, model=model, max_samples=1, **where)


if __name__ == "__main__":
    write_lm_eval(Path(sys.argv[1]) / "lm-eval-0.4.13")
    write_inspect(Path(sys.argv[1]) / "inspect-0.3.285")
