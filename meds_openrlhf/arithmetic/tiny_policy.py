"""Tiny policies for machines without a GPU: a character tokenizer, an architecture, and a short supervised training.

They have Qwen2's architecture, so that transformers, DeepSpeed and vLLM load them like large ones.

The tokenizer has one token per character, so that a policy of a million parameters has a small vocabulary. The two
fixed parts of the Qwen-Math template are single tokens, so that a prompt has only two tokens more than its problem. The
phrases of responses may be single tokens too. The tokenizer's class is Qwen2's own, with a vocabulary of single bytes
and no merges. Next to a Qwen2 config, transformers 5 replaces the pre-tokenizer and the decoder of any saved tokenizer
by Qwen2's; only this class survives that unchanged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AddedToken, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from meds_openrlhf.data.questions import qwen_math_prompt

END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"
PADDING = "<|endoftext|>"


def build_char_tokenizer(longest_text: int = 512, pieces: Iterable[str] = ()) -> Qwen2Tokenizer:
    """Build the tokenizer: padding `<|endoftext|>`, end of sequence `<|im_end|>`, and no tokens added around a text.

    Printable ASCII and newline are one token each, other characters one per UTF-8 byte. Encoding and decoding restore a
    text exactly (in Unicode's composed form). `longest_text` is `model_max_length`, in tokens. The `pieces` are single
    tokens too, wherever they occur; the longest match wins.
    """
    # The special tokens, then the 256 bytes in GPT-2's and Qwen's notation: a space is `Ġ`, a newline `Ċ`.
    vocabulary = [PADDING, START_OF_TURN, END_OF_TURN, *bytes_to_unicode().values()]
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(vocabulary)},
        merges=[],
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        extra_special_tokens=[START_OF_TURN],
        model_max_length=longest_text,
        padding_side="left",  # generation needs left padding
    )
    # Unnormalized like the special tokens, so that both are matched in the same pass and the longest match wins.
    tokenizer.add_tokens(
        [AddedToken(piece, normalized=False, special=False) for piece in (*template_pieces(), *pieces)]
    )
    return tokenizer


def template_pieces() -> tuple[str, str]:
    """The parts of the template before and after the problem."""
    before, after = qwen_math_prompt("?").split("?")
    return before, after


CONTEXT_LENGTH = 512  # tokens

Example = tuple[list[int], list[int]]
"""The tokens of a prompt, a response and the end of turn, and what to learn of each: nothing of the prompt's."""

_WARM_UP_STEPS = 20
_IGNORED = -100
_POOLED_BATCHES = 16  # among which examples are sorted by length


@dataclass(frozen=True, kw_only=True)
class PolicyRecipe:
    """A tiny policy's size and its supervised training."""

    layers: int = 6
    hidden_size: int = 96
    heads: int = 3
    steps: int
    batch_size: int = 32
    matrix_learning_rate: float = 0.02
    """For the layers' weight matrices, which Muon trains; AdamW needs about 50 % more steps."""
    learning_rate: float = 3e-3
    """For all other weights, which AdamW trains."""

    @property
    def examples(self) -> int:
        """The number of examples that the training takes, each once."""
        return self.steps * self.batch_size


def make_policy(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[tuple[str, str]],
    recipe: PolicyRecipe,
    seed: int,
    generator: random.Random,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Train a new policy on prompts and responses, and write it and its tokenizer, in bfloat16, to ``folder``.

    ``texts`` are `recipe.examples` pairs; ``seed`` is that of the weights, ``generator`` orders the batches, ``report``
    gets progress lines. Equal arguments give equal weights on the same machine.
    """
    batches = _batches([_encode(tokenizer, *text) for text in texts], recipe.batch_size, generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = _new_policy(tokenizer, recipe)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two are 1.7 times as fast on an idle machine, but ten times as slow if a core is busy
    try:
        _train(policy, batches, recipe, report)
    finally:
        torch.set_num_threads(threads)
    transformers.logging.disable_progress_bar()  # a single file takes a millisecond
    policy.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: str, response: str) -> Example:
    before = tokenizer.encode(prompt, add_special_tokens=False)
    after = [*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_id]
    return [*before, *after], [*[_IGNORED] * len(before), *after]


def _batches(examples: Sequence[Example], size: int, generator: random.Random) -> list[list[Example]]:
    """A batch per step, each with examples of similar length, to reduce padding."""
    batches = []
    for start in range(0, len(examples), _POOLED_BATCHES * size):
        alike = sorted(examples[start : start + _POOLED_BATCHES * size], key=lambda example: len(example[0]))
        pooled = [alike[first : first + size] for first in range(0, len(alike), size)]
        generator.shuffle(pooled)
        batches += pooled
    return batches


def _new_policy(tokenizer: PreTrainedTokenizerBase, recipe: PolicyRecipe) -> Qwen2ForCausalLM:
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


def _train(
    policy: Qwen2ForCausalLM,
    batches: Sequence[Sequence[Example]],
    recipe: PolicyRecipe,
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


def _make_optimizers(policy: Qwen2ForCausalLM, recipe: PolicyRecipe) -> list[torch.optim.Optimizer]:
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


def _response_loss(policy: Qwen2ForCausalLM, batch: Sequence[Example]) -> torch.Tensor:
    """Mean cross-entropy over the tokens of the responses, a scalar. Right padding needs no attention mask."""
    pads = (policy.config.pad_token_id, _IGNORED)
    tokens, targets = (
        pad_sequence([torch.tensor(part) for part in parts], batch_first=True, padding_value=pad)  # (B, T)
        for parts, pad in zip(zip(*batch), pads)
    )
    logits = policy(input_ids=tokens, use_cache=False).logits[:, :-1]  # (B, T - 1, vocabulary)
    return cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=_IGNORED)
