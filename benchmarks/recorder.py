"""What recording layer logits adds to the log-prob recompute: time, memory, and waits for the GPU.

Three ways to do one pass take turns in one process, so that a slow minute of the machine hits all of them:

- plain: OpenRLHF's log-prob recompute of a batch, nothing recorded;
- recorder: the same, while `LayerLogitRecorder` listens;
- hidden states: the same with `output_hidden_states=True`, then each layer's row at the answer position times the whole
  unembedding matrix, of which the target's logit is kept.

Before anything is timed, the layer logits of the second and the third are compared. From the repository's root:

    python -m benchmarks.recorder --shape small --threads 2
    python -m benchmarks.recorder --shape qwen2.5-7b --device cuda --check-sync

Every number of a shape can be set on its own (`--layers 4 --batch 2 ...`).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import random
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.layout import padded_positions
from meds_openrlhf.features.recorder import LayerLogitRecorder
from meds_openrlhf.training import cpu

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENS_PER_CHUNK = 1024  # of OpenRLHF's log-sum-exp


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Qwen2 model with random weights, and the batch that it gets."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    batch: int
    length: int
    dtype: str


SHAPES = {
    "small": Shape(
        layers=12, hidden=512, heads=8, kv_heads=4, intermediate=1408, vocabulary=32768,
        batch=8, length=512, dtype="float32",
    ),
    "qwen2.5-7b": Shape(
        layers=28, hidden=3584, heads=28, kv_heads=4, intermediate=18944, vocabulary=152064,
        batch=8, length=4096, dtype="bfloat16",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Token ids (B, T) on the model's device; on the host an answer position and a target token per row, (B,) int64."""

    ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """What OpenRLHF gives the model for rows without padding."""
        mask = torch.ones_like(self.ids)
        return {"input_ids": self.ids, "attention_mask": mask, "position_ids": mask.cumsum(-1) - 1}


@dataclass(frozen=True)
class Pass:
    """What one pass made: log-probs (B, T - 1), layer logits (B, N) where it has them, and the recording's seconds."""

    log_probs: torch.Tensor
    layer_logits: torch.Tensor | None = None
    own_seconds: float = 0.0


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made under it and alive at once; ``peak`` is their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._seen = WeakIdKeyDictionary()  # storages: views share one, and it lives as long as any of them

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        tree_map_only(torch.Tensor, lambda tensor: self._seen.setdefault(tensor.untyped_storage()), (args, kwargs))
        result = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._count, result)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._seen:
            self._seen[storage] = None
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size: int) -> None:
        self.live -= size


def make_model(shape: Shape, device: str) -> Any:
    """The model, set up as OpenRLHF sets up a policy for its recompute, except for the attention's kernel (sdpa)."""
    config = Qwen2Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.length, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):  # a large model's weights are drawn where they stay
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[shape.dtype], attn_implementation="sdpa")
    return model.eval()


def make_engine(model: Any, shape: Shape, device: str) -> Any:
    """The model in a DeepSpeed engine of one rank, without an optimizer."""
    defaults = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    os.environ.update({**defaults, **os.environ, "DS_ACCELERATOR": device})
    if device == "cpu":
        cpu.install()  # nothing is compiled
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": shape.batch, "bf16": {"enabled": shape.dtype == "bfloat16"}}
    engine, *_ = deepspeed.initialize(model=model, config=config)
    engine.eval()
    return engine


def make_batch(shape: Shape, device: str) -> Batch:
    """Random tokens; every row has an answer, somewhere in its second half."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(shape.vocabulary, (shape.batch, shape.length), generator=generator)
    positions = torch.randint(shape.length // 2, shape.length - 1, (shape.batch,), generator=generator)
    return Batch(ids.to(device), positions, ids[torch.arange(shape.batch), positions + 1])


def log_probs_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """OpenRLHF's log-probs (B, T - 1) of the tokens after the first, from logits (B, T, V), without fused kernels."""
    logits = logits.to(torch.float32)
    labels = torch.roll(ids, shifts=-1, dims=1)
    chosen = torch.gather(logits, dim=-1, index=labels[..., None])[..., 0]
    chunks = logits.reshape(-1, logits.shape[-1]).split(TOKENS_PER_CHUNK)
    normalizer = torch.cat([torch.logsumexp(chunk, dim=-1) for chunk in chunks]).view_as(chosen)
    return (chosen - normalizer)[:, :-1]


def plain_pass(model: Any, batch: Batch) -> Pass:
    """The recompute alone."""
    return Pass(log_probs_of(model(**batch.inputs).logits, batch.ids))


def recorded_pass(model: Any, batch: Batch, recorder: LayerLogitRecorder) -> Pass:
    """The recompute with the recorder."""
    tokens = padded_positions(batch.positions, batch.ids.shape[1])
    with recorder.record(tokens, batch.targets) as recording:
        log_probs = log_probs_of(model(**batch.inputs).logits, batch.ids)
    return Pass(log_probs, recording.layer_logits, recording.seconds)


def hidden_states_pass(model: Any, batch: Batch) -> Pass:
    """The recompute that asks for all hidden states, and puts a row of each through the whole unembedding."""
    output = model(**batch.inputs, output_hidden_states=True)
    log_probs = log_probs_of(output.logits, batch.ids)
    rows = torch.arange(len(batch.ids), device=batch.ids.device)
    positions, targets = batch.positions.to(rows.device), batch.targets.to(rows.device)
    unembedding = getattr(model, "module", model).get_output_embeddings()
    logits = [unembedding(hidden[rows, positions])[rows, targets] for hidden in output.hidden_states[1:]]
    return Pass(log_probs, torch.stack(logits, dim=1).float())


def check_agreement(recorded: torch.Tensor | None, expected: torch.Tensor | None, dtype: str) -> float:
    """The largest difference of two (B, N) layer logits; AssertionError where it is more than rounding."""
    assert recorded is not None
    assert expected is not None
    atol, rtol = (1e-4, 1e-4) if dtype == "float32" else (2**-7, 2**-6)
    torch.testing.assert_close(recorded, expected, atol=atol, rtol=rtol)
    return float((recorded - expected).abs().max())


def check_no_synchronization(model: Any, batch: Batch, recorder: LayerLogitRecorder) -> None:
    """RuntimeError where a recorded forward pass, or what the recorder does after it, makes the host wait."""
    tokens = padded_positions(batch.positions, batch.ids.shape[1])
    try:
        with recorder.record(tokens, batch.targets):
            torch.cuda.set_sync_debug_mode("error")
            # Given a mask to look at, or none at all, transformers itself waits for the device; a ready one is used.
            model(input_ids=batch.ids, attention_mask={"full_attention": None})
    finally:
        torch.cuda.set_sync_debug_mode("default")


def time_passes(
    passes: dict[str, Callable[[], Pass]], repeats: int, device: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Seconds of each pass, and of the recorder's work in it, by name: (repeats,) each. Who goes first rotates."""
    seconds = {name: np.zeros(repeats) for name in passes}
    recording = {name: np.zeros(repeats) for name in passes}
    names = list(passes)
    for index in range(repeats):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            _synchronize(device)
            started = time.perf_counter()
            result = passes[name]()
            _synchronize(device)
            seconds[name][index] = time.perf_counter() - started
            recording[name][index] = result.own_seconds
    return seconds, recording


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_bytes(run: Callable[[], Pass], device: str) -> int:
    """Most bytes that the tensors of one pass take at once, weights and inputs left out."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with LiveBytes() as live:
        run()
    return live.peak


def spread(values: np.ndarray, form: str) -> str:
    """The median, and in brackets the quartiles."""
    low, median, high = (format(value, form) for value in np.quantile(values, [0.25, 0.5, 0.75]))
    return f"{median} ({low} to {high})"


def table_lines(
    seconds: dict[str, np.ndarray], recording: dict[str, np.ndarray], peaks: dict[str, int], batch: int
) -> Iterator[str]:
    """The Markdown table: a row per way to do a pass."""
    yield "| pass | seconds | ratio to plain | recorder's recording work | peak memory over plain |"
    yield "|---|---|---|---|---|"
    for name, values in seconds.items():
        cells = [name, spread(values, ".3f"), "1", "", "0"]
        if name != "plain":
            over = (peaks[name] - peaks["plain"]) / 1e6
            cells[2] = spread(values / seconds["plain"], ".4f")
            cells[4] = f"{over:.3f} MB for {batch} responses"
        if recording[name].any():
            cells[3] = spread(100 * recording[name] / values, ".4f") + " %"
        yield f"| {' | '.join(cells)} |"


def benchmark_passes(shape: Shape, arguments: argparse.Namespace) -> Iterator[str]:
    """Lines of the report on the passes."""
    model = make_model(shape, arguments.device)
    if arguments.deepspeed:
        model = make_engine(model, shape, arguments.device)
    batch = make_batch(shape, arguments.device)
    recorder = LayerLogitRecorder(model)
    passes = {
        "plain": lambda: plain_pass(model, batch),
        "recorder": lambda: recorded_pass(model, batch, recorder),
        "hidden states": lambda: hidden_states_pass(model, batch),
    }
    plain, recorded, expected = (run() for run in passes.values())  # also the warm-up
    assert torch.equal(plain.log_probs, recorded.log_probs), "the recorder changes the log-probs"
    difference = check_agreement(recorded.layer_logits, expected.layer_logits, shape.dtype)
    del plain, recorded, expected
    if arguments.check_sync:
        check_no_synchronization(model, batch, recorder)
        yield "The host never waits for the device inside a recorded forward pass."
    peaks = {name: peak_bytes(run, arguments.device) for name, run in passes.items()}
    seconds, recording = time_passes(passes, arguments.repeats, arguments.device)
    yield f"Layer logits of both ways differ by at most {difference:.1e}; log-probs are the same to the bit."
    yield ""
    yield from table_lines(seconds, recording, peaks, shape.batch)
    yield ""
    how = "torch.cuda.max_memory_allocated" if arguments.device == "cuda" else "bytes of live tensors, counted per op"
    yield f"Medians of {arguments.repeats} rounds, quartiles in brackets; ratios are per round. Peak memory: {how}."


def a_response(tokenizer: Any, tokens: int) -> list[int]:
    """A response of so many tokens that ends with a boxed answer."""
    words = random.Random(2)
    text = "".join(f"so {words.randrange(1000)} + x = \\frac{{{words.randrange(100)}}}{{7}}, " for _ in range(tokens))
    answer = tokenizer(" the answer is \\boxed{42}.", add_special_tokens=False)["input_ids"]
    return tokenizer(text, add_special_tokens=False)["input_ids"][: tokens - len(answer)] + answer


def build_bpe_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on a text like the responses."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    texts = [f"so {i} + x = \\frac{{{i}}}{{7}}, the answer is \\boxed{{{i}}}." for i in range(1000)]
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def benchmark_locator(repeats: int = 200) -> Iterator[str]:
    """Lines of the report on finding the answer in a response's token ids."""
    for name, tokenizer in (("character", build_char_tokenizer(10**6)), ("byte-level BPE", build_bpe_tokenizer())):
        locator = AnswerLocator(tokenizer)
        for tokens in (1000, 3000):
            ids = a_response(tokenizer, tokens)
            generated = [False] + [True] * (tokens - 1)
            seconds = np.zeros(repeats)
            for index in range(repeats):
                started = time.perf_counter()
                found = locator.locate(ids, generated)
                seconds[index] = time.perf_counter() - started
            assert found is not None
            cost = spread(seconds * 1e6, ".0f")
            yield f"Answer locator, {name} tokenizer, {tokens:,} tokens: {cost} µs per response."


def parse_arguments(command_line: list[str] | None) -> tuple[Shape, argparse.Namespace]:
    """The shape with what overrides it, and all other arguments."""
    parser = argparse.ArgumentParser(description="Measure what recording layer logits adds to a log-prob recompute.")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    numbers = [field.name for field in dataclasses.fields(Shape) if field.name != "dtype"]
    for name in numbers:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=15, help="rounds, each with one pass of every kind")
    parser.add_argument("--threads", type=int, help="of torch on a CPU; default: torch's own choice")
    parser.add_argument("--deepspeed", action="store_true", help="put the model into a DeepSpeed engine")
    parser.add_argument(
        "--check-sync", action="store_true", help="fail if the recorder makes the host wait for the GPU"
    )
    arguments = parser.parse_args(command_line)
    if arguments.check_sync and arguments.device != "cuda":
        parser.error("--check-sync: needs --device cuda")
    given = {name: getattr(arguments, name) for name in (*numbers, "dtype") if getattr(arguments, name) is not None}
    return dataclasses.replace(SHAPES[arguments.shape], **given), arguments


def main(command_line: list[str] | None = None) -> None:
    """Print the report."""
    shape, arguments = parse_arguments(command_line)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    where = platform.machine() if arguments.device == "cpu" else torch.cuda.get_device_name()
    print(f"{shape}, torch {torch.__version__}, {where}, {torch.get_num_threads()} threads\n")
    with torch.no_grad():
        for line in benchmark_passes(shape, arguments):
            print(line, flush=True)
    print()
    for line in benchmark_locator():
        print(line)


if __name__ == "__main__":
    main()
