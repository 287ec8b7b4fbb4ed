"""Prepare the demo's assets: a tiny policy that keeps making the same mistakes, and problems to train it on.

The policy has Qwen2's architecture and a short supervised training on worked solutions, most of which make one of the
problem's dominant mistakes. Its samples repeat the same few wrong answers in varied words, and are right often enough
for reinforcement learning to improve it.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.arithmetic.problems import NO_MISTAKE, Problem, dominant_mistakes, draw_problems, write_solution
from meds_openrlhf.data.templates import qwen_math_prompt

CONTEXT_LENGTH = 512
# Increase this when problems, wording or training change in code: assets of earlier versions are then rebuilt.
TASK_VERSION = 1

_RECIPE_FILE = "recipe.json"
_WARM_UP_STEPS = 20
_IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class WarmStartRecipe:
    """The settings of the supervised training; equal recipes and seeds give equal assets on the same machine."""

    layers: int = 6
    hidden_size: int = 96
    heads: int = 3
    steps: int = 340
    batch_size: int = 32
    matrix_learning_rate: float = 0.02
    """For the layers' weight matrices, which Muon trains; AdamW needs about 50 % more steps."""
    learning_rate: float = 3e-3
    """For all other weights, which AdamW trains."""
    train_problems: int = 64
    eval_problems: int = 32
    """Never seen in the supervised training."""
    other_problems: int = 600
    """Problems of the same family in neither of the two sets, for skill beyond the problems of `train`."""
    train_share: float = 0.5
    """Share of the solutions that solve a problem of `train`; the rest solve other problems."""
    right_share: float = 0.34
    first_mistake_share: float = 0.42
    """Share of the solutions that make the first dominant mistake; the remaining solutions make the second."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden_size", "heads", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1")
        for name in ("train_problems", "eval_problems", "other_problems"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1 problem")
        for name in ("train_share", "right_share", "first_mistake_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give a share from 0 to 1")
        if self.right_share + self.first_mistake_share > 1:
            raise ValueError(f"first_mistake_share is {self.first_mistake_share}: with right_share give at most 1")
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size is {self.hidden_size}: give an even multiple of heads, which is {self.heads}"
            )


DEFAULT_RECIPE = WarmStartRecipe()


@dataclass(frozen=True)
class ArithmeticAssets:
    """The paths of the demo's assets."""

    policy: Path  # a folder that AutoModelForCausalLM, AutoTokenizer and vLLM load
    train: Path  # JSON Lines: id, prompt (template applied), answer, datasource
    eval: Path  # the same, with problems that the policy never saw


@dataclass(frozen=True)
class _Example:
    """A prompt and its worked solution, including the end of turn."""

    tokens: list[int]
    prompt_length: int


def prepare(
    out: Path,
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
    recipe: WarmStartRecipe = DEFAULT_RECIPE,
) -> ArithmeticAssets:
    """Make the policy and the problems under `out`, unless they exist already for the same recipe and seed.

    The folder is created atomically and replaces assets of another recipe. `report` gets progress lines. Raises
    ValueError if `out` holds something else, which is left unchanged.
    """
    assets = ArithmeticAssets(policy=out / "policy", train=out / "train.jsonl", eval=out / "eval.jsonl")
    settings = {"task_version": TASK_VERSION, "seed": seed, **asdict(recipe)}
    if _read_settings(out) == settings:
        report(f"the arithmetic policy and its problems are in {out} already")
        return assets
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        fresh = Path(scratch) / "fresh"
        _build(fresh, seed, recipe, report)
        (fresh / _RECIPE_FILE).write_text(json.dumps(settings, indent=2) + "\n")
        if out.exists():
            os.replace(out, Path(scratch) / "former")
        os.replace(fresh, out)
    return assets


def _read_settings(out: Path) -> dict[str, object] | None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / _RECIPE_FILE).is_file():
        raise ValueError(f"out is {out}: it holds something else than the demo's assets, name another folder")
    settings: dict[str, object] = json.loads((out / _RECIPE_FILE).read_text())
    return settings


def _build(folder: Path, seed: int, recipe: WarmStartRecipe, report: Callable[[str], None]) -> None:
    """Draw the problems, train the policy, and write both into the folder."""
    problems = draw_problems(recipe.train_problems + recipe.eval_problems + recipe.other_problems, seed)
    evaluated = recipe.train_problems + recipe.eval_problems
    train, others = problems[: recipe.train_problems], problems[evaluated:]

    tokenizer = build_char_tokenizer(CONTEXT_LENGTH)
    batches = _draw_batches(tokenizer, train, others, seed, recipe)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = _make_policy(tokenizer, recipe)
    with _one_thread():
        _train(policy, batches, recipe, report)

    transformers.logging.disable_progress_bar()  # a single file takes a millisecond
    policy.to(torch.bfloat16).save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    _write_rows(folder / "train.jsonl", train, first_number=0)
    _write_rows(folder / "eval.jsonl", problems[recipe.train_problems : evaluated], first_number=recipe.train_problems)


def _write_rows(path: Path, problems: Sequence[Problem], first_number: int) -> None:
    rows = [
        {
            "id": f"arith-{number:06d}",
            "prompt": qwen_math_prompt(problem.expression),
            "answer": str(problem.answer),
            "datasource": "arithmetic",
        }
        for number, problem in enumerate(problems, first_number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _draw_batches(
    tokenizer: PreTrainedTokenizerBase,
    train: Sequence[Problem],
    others: Sequence[Problem],
    seed: int,
    recipe: WarmStartRecipe,
) -> list[list[_Example]]:
    """A batch per step, each with examples of similar length, to reduce padding."""
    generator = random.Random(f"solutions-{seed}")
    examples = []
    for _ in range(recipe.steps * recipe.batch_size):
        problem = generator.choice(train if generator.random() < recipe.train_share else others)
        examples.append(_draw_example(tokenizer, problem, generator, recipe))
    batches = []
    pool = 16 * recipe.batch_size
    for start in range(0, len(examples), pool):
        alike = sorted(examples[start : start + pool], key=lambda example: len(example.tokens))
        pooled = [alike[first : first + recipe.batch_size] for first in range(0, len(alike), recipe.batch_size)]
        generator.shuffle(pooled)
        batches += pooled
    return batches


def _draw_example(
    tokenizer: PreTrainedTokenizerBase, problem: Problem, generator: random.Random, recipe: WarmStartRecipe
) -> _Example:
    first, second = dominant_mistakes(problem)
    wrong_share = 1 - recipe.right_share - recipe.first_mistake_share
    shares = (recipe.right_share, recipe.first_mistake_share, wrong_share)
    mistake = generator.choices((NO_MISTAKE, first, second), shares)[0]
    prompt = tokenizer.encode(qwen_math_prompt(problem.expression), add_special_tokens=False)
    solution = tokenizer.encode(write_solution(problem, mistake, generator), add_special_tokens=False)
    return _Example([*prompt, *solution, tokenizer.eos_token_id], prompt_length=len(prompt))


def _make_policy(tokenizer: PreTrainedTokenizerBase, recipe: WarmStartRecipe) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=2 * recipe.hidden_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=False,
        # About 1 / sqrt(hidden_size); with the usual 0.02, such a narrow model takes far longer to start learning.
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: two are 1.7 times as fast on an idle machine, but up to ten times as slow if a core is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train(
    policy: Qwen2ForCausalLM,
    batches: Sequence[Sequence[_Example]],
    recipe: WarmStartRecipe,
    report: Callable[[str], None],
) -> None:
    optimizers = _make_optimizers(policy, recipe)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: _pace(step, len(batches))) for each in optimizers]
    started = time.monotonic()
    for step, batch in enumerate(batches, 1):
        loss = _response_loss(policy, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()
        policy.zero_grad()
        if step % 40 == 0 or step == len(batches):
            seconds = time.monotonic() - started
            report(f"warm start: step {step} of {len(batches)}, loss {loss.item():.2f}, {seconds:.0f} s")


def _make_optimizers(policy: Qwen2ForCausalLM, recipe: WarmStartRecipe) -> list[torch.optim.Optimizer]:
    matrices = [weight for weight in policy.model.layers.parameters() if weight.ndim == 2]
    known = {id(weight) for weight in matrices}
    rest = [weight for weight in policy.parameters() if id(weight) not in known]
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_learning_rate, weight_decay=0.0),
        torch.optim.AdamW(rest, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _pace(step: int, steps: int) -> float:
    """The learning rate's factor at a step: a short warm-up, times a linear decay to zero."""
    return min((step + 1) / _WARM_UP_STEPS, 1.0) * (1 - step / steps)


def _response_loss(policy: Qwen2ForCausalLM, batch: Sequence[_Example]) -> torch.Tensor:
    """Mean cross-entropy over the tokens of the responses, a scalar. Right padding needs no attention mask."""
    longest = max(len(example.tokens) for example in batch)
    tokens = torch.full((len(batch), longest), policy.config.pad_token_id)  # (B, T)
    targets = torch.full((len(batch), longest), _IGNORED)  # (B, T)
    for row, example in enumerate(batch):
        length = len(example.tokens)
        tokens[row, :length] = torch.tensor(example.tokens)
        targets[row, example.prompt_length : length] = tokens[row, example.prompt_length : length]
    logits = policy(input_ids=tokens, use_cache=False).logits[:, :-1]  # (B, T - 1, vocabulary)
    return cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=_IGNORED)
