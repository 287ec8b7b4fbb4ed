"""Responses of SmolLM2 to sums and word problems, and their layer logits, for the studies of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from examples.smollm2 import SUFFIX, Problem
from examples.smollm2 import problems as recipe_problems
from meds_openrlhf import AnswerLocator

PROMPTS, SCREENED, VISITS, GROUP = 24, 8, 3, 12
MOST_TOKENS = 128  # of a response
SCREENING_SEED, SEED, PROBLEM_SEED = 20_000, 30_000, 4_100
PATTERN = r"(-?\d[\d,]*(?:\.\d+)?)"
ASK = " Think step by step: write an equation for each step, and the answer at the end."
TASKS = ("chain_sum", "gsm_symbolic")


@dataclass(frozen=True)
class Stage:
    """What is asked of a model, and how its answers are found: by ``pattern``, or in boxes."""

    pattern: str | None
    problems: Callable[[str], Iterator[Problem]]


def _published_problems(task: str) -> Iterator[Problem]:
    import reasoning_gym

    terms = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 2} if task == "chain_sum" else {}
    for item in reasoning_gym.create_dataset(task, size=400, seed=PROBLEM_SEED, **terms):
        sums = item["metadata"].get("expression")
        question = f"What is {sums}?" if sums else item["question"].removesuffix(SUFFIX)
        yield Problem(task, question + ASK, "", str(item["answer"]))


STAGES = {
    "published": Stage(PATTERN, _published_problems),
    "started": Stage(None, partial(recipe_problems, seed=PROBLEM_SEED, starts=False)),
}


class Sampler:
    """Samples responses with vLLM, on CPUs in float32, as in training."""

    def __init__(self, model: Path) -> None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{(os.cpu_count() or 1) - 1}")  # it leaves one idle
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        import torch
        from transformers import AutoTokenizer
        from vllm import LLM

        self.tokenizer = AutoTokenizer.from_pretrained(model)
        # All prompts at once: of one that is computed in parts, vLLM sets back a generator that a CPU's cannot.
        at_once = {"max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 64 * 512}
        dtype = "bfloat16" if torch.cuda.is_available() else "float32"
        self._engine = LLM(str(model), dtype=dtype, enforce_eager=True, **at_once)

    def sample(self, problems: Sequence[Problem], n: int, seed: int) -> Iterator[tuple[str, list[Any]]]:
        """Yield each problem's prompt and vLLM's ``n`` completions, by ``seed`` and the problem's place."""
        from vllm import SamplingParams

        template = partial(self.tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
        prompts = [template([{"role": "user", "content": problem.question}]) for problem in problems]
        options = [
            SamplingParams(n=n, temperature=1.0, max_tokens=MOST_TOKENS, seed=seed + place)
            for place in range(len(problems))
        ]
        for prompt, request in zip(prompts, self._engine.generate(prompts, options)):
            yield prompt, request.outputs


def responses_to(
    sampler: Sampler, locator: AnswerLocator, chosen: Sequence[Problem], n: int, seed: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield ``n`` responses to each problem, with their answers."""
    for each, (prompt, outputs) in zip(chosen, sampler.sample(chosen, n, seed)):
        before = sampler.tokenizer.encode(prompt, add_special_tokens=False)
        found = []
        for output in outputs:
            ids = [*before, *output.token_ids]
            answer = locator.find(ids, [False] * len(before) + [True] * len(output.token_ids)).text
            found.append({
                "task": each.task, "prompt": prompt, "truth": each.answer, "response": output.text,
                "ids": list(output.token_ids), "answer": answer, "correct": is_right(answer, each.answer),
            })  # fmt: skip
        yield found


def sample(model: Path, out: Path) -> None:
    """Screen problems and sample their visits; write ``rollouts.jsonl``, a line a response. Tasks that it has stay."""
    stage, sampler = STAGES[out.name], Sampler(model)
    responses = partial(responses_to, sampler, AnswerLocator(sampler.tokenizer, stage.pattern))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rollouts.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    written = Counter(json.loads(line)["task"] for line in lines)
    done = {task for task, count in written.items() if count == PROMPTS * VISITS * GROUP}
    path.write_text("".join(line for line in lines if json.loads(line)["task"] in done), encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        for task in TASKS:
            if task in done:
                continue
            chosen: list[Problem] = []
            screened, source = 0, stage.problems(task)
            while len(chosen) < PROMPTS:
                drawn = [next(source) for _ in range(PROMPTS)]
                for each, found in zip(drawn, responses(drawn, SCREENED, SCREENING_SEED + 1000 * screened)):
                    if sum(response["correct"] for response in found) <= SCREENED / 2 and len(chosen) < PROMPTS:
                        chosen.append(each)
                screened += len(drawn)
            print(f"{task}: {len(chosen)} of {screened} problems", flush=True)
            for visit in range(1, VISITS + 1):
                for found in responses(chosen, GROUP, SEED + 1000 * visit):
                    for response in found:
                        file.write(json.dumps({"visit": visit, **response}) + "\n")
                print(f"{task}: visit {visit} of {VISITS}", flush=True)


def is_right(answer: str | None, truth: str) -> bool:
    """Whether an answer is the true number."""
    from meds_openrlhf.features.final_answer import same_answer_form

    return answer is not None and same_answer_form(answer) == same_answer_form(truth)


def record(model: Path, out: Path) -> None:
    """Record the layer logits (n, N) of all responses with an answer, NaN for the others; ``rows.npz``."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from meds_openrlhf import LayerLogitRecorder, locate_answers, padded_positions

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    recorder, locator = LayerLogitRecorder(policy), AnswerLocator(tokenizer, STAGES[out.name].pattern)
    rollouts = read_responses(out / "rollouts.jsonl")
    before = {prompt: tokenizer.encode(prompt, add_special_tokens=False) for prompt in rollouts["prompt"].unique()}
    full = [[*before[prompt], *ids] for prompt, ids in zip(rollouts["prompt"], rollouts["ids"])]
    logits = np.full((len(full), recorder.layer_count), np.nan, np.float32)
    log_prob, first = np.full(len(full), np.nan, np.float32), np.full(len(full), -1)
    order = sorted(range(len(full)), key=lambda row: len(full[row]))
    for begin in range(0, len(order), 16):
        rows = order[begin : begin + 16]
        ids = pad_sequence([torch.tensor(full[row]) for row in rows], batch_first=True)
        own = torch.zeros(ids.shape, dtype=torch.bool)
        for place, row in enumerate(rows):
            own[place, len(before[rollouts["prompt"][row]]) : len(full[row])] = True
        positions, targets = locate_answers(locator, ids, own)
        with torch.inference_mode(), recorder.record(padded_positions(positions, ids.shape[1]), targets) as recording:
            states = policy.model(ids).last_hidden_state
        with torch.inference_mode():
            places = torch.arange(len(rows))
            scores = policy.lm_head(states[places, positions.clamp(min=0)]).log_softmax(-1)
        found = positions.numpy() >= 0
        kept = np.array(rows)[found]
        logits[kept] = recording.layer_logits.numpy()[found]
        log_prob[kept] = scores[places, targets].numpy()[found]
        first[kept] = targets.numpy()[found]
        if begin % 320 == 0:
            print(f"{begin} of {len(order)}", flush=True)
    np.savez_compressed(out / "rows.npz", layer_logits=logits, log_prob=log_prob, first=first)


def read_responses(path: Path) -> pd.DataFrame:
    """Read responses, a line each; ``form`` is the answer in one spelling, both None without an answer."""
    from meds_openrlhf.features.final_answer import same_answer_form

    with path.open(encoding="utf-8") as file:
        found = pd.DataFrame(map(json.loads, file))
    answers = found["answer"].astype(object).where(found["answer"].notna(), None)
    forms = pd.Series([answer and same_answer_form(answer) for answer in answers], dtype=object)
    return found.assign(answer=answers, form=forms)
