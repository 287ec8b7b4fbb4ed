"""Metrics of an evaluation during training: the same pass@k as in `meds eval`, computed from the verdicts only."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from openrlhf.trainer.ppo_trainer import compute_eval_metrics

from meds_openrlhf.evaluation.estimators import pass_at_k
from meds_openrlhf.evaluation.results import ks_up_to
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.training.samples import answers_of, generated_tokens, is_right


def eval_metrics(
    eval_dataloader: Any, samples: list[Any], n: int, *, threshold: float, locator: AnswerLocator
) -> dict[str, float]:
    """Return OpenRLHF's metrics with unbiased ``eval_SOURCE_pass{k}`` for every k in 1, 2, 4, ... up to ``n``.

    ``samples`` are OpenRLHF's experiences with one response each; the ``n`` responses to a prompt are adjacent. A
    response is right if its score is at least ``threshold``; format rewards and shaping do not count.
    ``eval_SOURCE_unanswered_rate`` is the share of responses in which ``locator`` finds no answer.
    """
    metrics: dict[str, float] = compute_eval_metrics(eval_dataloader, samples, n)
    source_of = {prompt: source for sources, prompts, *_ in eval_dataloader for prompt, source in zip(prompts, sources)}
    right: dict[str, list[int]] = defaultdict(list)
    unanswered: dict[str, list[bool]] = defaultdict(list)
    for first in range(0, len(samples), n):
        group = samples[first : first + n]
        source = source_of.get(group[0].prompts[0], "unknown")
        right[source].append(sum(int(is_right(sample, threshold).sum()) for sample in group))
        unanswered[source] += [answer is None for sample in group for answer in _answers(sample, locator)]
    for source, counts in right.items():
        for k in ks_up_to(n):
            metrics[f"eval_{source}_pass{k}"] = float(pass_at_k(n, np.array(counts), k).mean())
        metrics[f"eval_{source}_unanswered_rate"] = float(np.mean(unanswered[source]))
    return metrics


def _answers(sample: Any, locator: AnswerLocator) -> list[str | None]:
    return answers_of(locator, sample.sequences, generated_tokens(sample.action_mask, sample.attention_mask))


def eval_line(step: int, metrics: dict[str, float]) -> str:
    """Format metrics as in ``evaluation after step 20: aime24 pass@1 0.102, pass@8 0.312``."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for name, value in metrics.items():
        source, marker, k = name.removeprefix("eval_").rpartition("_pass")
        if marker and k.isdigit():
            found[source].append((int(k), value))
    parts = []
    for source, values in found.items():
        ends = dict.fromkeys((min(values), max(values)))
        parts.append(f"{source} " + ", ".join(f"pass@{k} {value:.3f}" for k, value in ends))
    return f"evaluation after step {step}: {'; '.join(parts)}"
