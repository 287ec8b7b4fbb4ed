"""Sends the rollouts of a step to the rollout log without waiting; the metrics of rollouts and of evaluations."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import comb
from typing import Any

import numpy as np
import ray
from openrlhf.trainer.ppo_trainer import compute_eval_metrics
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.final_answer import same_answer_form
from meds_openrlhf.features.layout import find_answers
from meds_openrlhf.rollouts.step import StepTable
from meds_openrlhf.runtime.errors import innermost
from meds_openrlhf.stats.estimates import ks_up_to, pass_at_k
from meds_openrlhf.step_log import pass_at_k_name, source_and_k
from meds_openrlhf.training.step.samples import generated_tokens, is_right

STEPS_AHEAD = 4  # the most unwritten steps that are kept in RAM, with their tokens; beyond that, training waits


class RolloutSender:
    """Sends rollouts to ``recorder``, an actor of `RolloutRecorder`; ``tell`` sends messages to the user.

    If a step cannot be written, its rollouts are lost and training continues; only the first failure is reported.
    """

    def __init__(self, recorder: Any, tell: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._tell = tell
        self._under_way: deque[Any] = deque()
        self._has_failed = False

    def send(self, rollouts: StepTable) -> None:
        """Send one step; waits only if `STEPS_AHEAD` earlier steps are still being written."""
        self._wait_for_all_but(STEPS_AHEAD - 1)
        self._under_way.append(self._recorder.record.remote(rollouts))

    def flush(self) -> None:
        """Wait until all sent steps are on disk."""
        self._wait_for_all_but(0)

    def _wait_for_all_but(self, newest: int) -> None:
        while len(self._under_way) > newest:
            try:
                ray.get(self._under_way.popleft())
            except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
                if not self._has_failed:
                    cause = innermost(error)
                    what = f"{type(cause).__name__}: {cause}"
                    self._tell(f"rollouts of a step could not be logged ({what}); training continues without them")
                self._has_failed = True


def metrics_of_policy(experiences: Sequence[Experience], rollouts: StepTable, generated: float) -> dict[str, float]:
    """Return what a step's rollouts cost in tokens, their answers, and what policy and engines say of their tokens.

    ``generated``: tokens that engines generated for the step, those of dropped prompts included. No penalty reaches a
    response without an answer. The mean of -log p over tokens sampled from p estimates the entropy of p, in nats per
    token, without a second pass over the vocabulary. The estimate is unbiased if no response is filtered out,
    ``rollout.top_p`` is 1 and the tokens were sampled from p. ``vllm_kl`` is the mean of the engines' log-probs minus
    the policy's before the update, in nats per token.
    """
    total = sum(float((batch.action_log_probs * batch.action_mask).sum()) for batch in experiences)
    tokens = sum(int(batch.action_mask.sum()) for batch in experiences)
    answers, form = rollouts.answer, cache(same_answer_form)
    wrong = [
        form(answer) if answer is not None and not right else None for answer, right in zip(answers, rollouts.correct)
    ]
    places = [slice(start, start + rollouts.group) for start in range(0, len(wrong), rollouts.group)]
    given = [Counter(form for form in wrong[place] if form is not None) for place in places]
    pairs = sum(comb(counts.total(), 2) for counts in given)
    equal = sum(comb(count, 2) for counts in given for count in counts.values())
    kl = {}
    if experiences[0].rollout_log_probs is not None:
        apart = [(batch.rollout_log_probs - batch.action_log_probs) * batch.action_mask for batch in experiences]
        kl = {"vllm_kl": sum(float(values.sum()) for values in apart) / max(tokens, 1)}
    return {
        **kl,
        **({"rollout/equal_wrong_answers": equal / pairs} if pairs else {}),
        "rollout/solved_prompts": float(np.mean([rollouts.correct[place].any() for place in places])),
        "rollout/trained_tokens": float(tokens),
        "rollout/generated_tokens": float(round(generated)),
        "rollout/unanswered_rate": sum(answer is None for answer in answers) / len(answers),
        "rollout/distinct_wrong_answers": float(np.mean([len(counts) for counts in given])),
        "policy_entropy": -total / max(tokens, 1),
    }


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
        for sample in group:
            generated = generated_tokens(sample.action_mask, sample.attention_mask)
            unanswered[source] += [answer.text is None for answer in find_answers(locator, sample.sequences, generated)]
    for source, counts in right.items():
        for k in ks_up_to(n):
            metrics[pass_at_k_name(source, k)] = float(pass_at_k(n, np.array(counts), k).mean())
        metrics[f"eval_{source}_unanswered_rate"] = float(np.mean(unanswered[source]))
    return metrics


def evaluation_metrics(meds: MedsSettings, tokenizer: Any) -> Callable[..., dict[str, float]]:
    """Return `eval_metrics` with a run's settings."""
    locator = AnswerLocator(tokenizer, meds.features.answer_pattern)
    return partial(eval_metrics, threshold=meds.penalty.correct_threshold, locator=locator)


def eval_line(step: int, metrics: dict[str, float]) -> str:
    """Format metrics as in ``evaluation after step 20: aime24 pass@1 0.102, pass@8 0.312``."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for name, value in metrics.items():
        if named := source_and_k(name):
            source, k = named
            found[source].append((k, value))
    parts = []
    for source, values in found.items():
        ends = dict.fromkeys((min(values), max(values)))
        parts.append(f"{source} " + ", ".join(f"pass@{k} {value:.3f}" for k, value in ends))
    return f"evaluation after step {step}: {'; '.join(parts)}"
