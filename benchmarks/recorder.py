"""What recording layer logits adds to the log-prob recompute: time and GPU memory.

OpenRLHF's log-prob recompute of a batch alternates with the same under `LayerLogitRecorder`. Before anything is timed,
their log-probs are compared: they must be the same to the bit. From the repository's root:

    python -m benchmarks.recorder --shape qwen2.5-7b --device cuda
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from benchmarks.table import HEADER, Line, machine, make_parser
from meds_openrlhf.features.layout import padded_positions
from meds_openrlhf.features.recorder import LayerLogitRecorder

TOKENS_PER_CHUNK = 1024  # of OpenRLHF's log-sum-exp


class Shape(NamedTuple):
    """A Qwen2 model with random weights, and the batch that it gets."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    batch: int
    length: int
    dtype: torch.dtype


QUICK = Shape(3, 32, 4, 2, 48, 97, batch=3, length=16, dtype=torch.float32)
SHAPES = {
    "small": Shape(12, 512, 8, 4, 1408, 32768, batch=8, length=512, dtype=torch.float32),
    "qwen2.5-7b": Shape(28, 3584, 28, 4, 18944, 152064, batch=8, length=4096, dtype=torch.bfloat16),
}


class Batch(NamedTuple):
    """Token ids (B, T) on the model's device; on the host a row's flat answer position and its target, (B,)."""

    ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor


Pass = tuple[torch.Tensor, float]  # log-probs (B, T - 1), and the seconds of the recorder's work


def make_model(shape: Shape, device: str) -> Any:
    """Return the model as OpenRLHF sets it up for its recompute, except for the attention's kernel (sdpa)."""
    config = Qwen2Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.length, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):  # a large model's weights are drawn where they stay
        return AutoModelForCausalLM.from_config(config, dtype=shape.dtype, attn_implementation="sdpa").eval()


def make_batch(shape: Shape, device: str) -> Batch:
    """Return random tokens; every row has an answer, somewhere in its second half."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(shape.vocabulary, (shape.batch, shape.length), generator=generator)
    positions = torch.randint(shape.length // 2, shape.length - 1, (shape.batch,), generator=generator)
    tokens = padded_positions(positions, shape.length)
    return Batch(ids.to(device), tokens, ids[torch.arange(shape.batch), positions + 1])


def log_probs_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return OpenRLHF's log-probs (B, T - 1) of the tokens after the first, of rows ``ids`` (B, T) without padding."""
    mask = torch.ones_like(ids)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=mask.cumsum(-1) - 1).logits.to(torch.float32)
    labels = torch.roll(ids, shifts=-1, dims=1)
    chosen = torch.gather(logits, dim=-1, index=labels[..., None])[..., 0]
    chunks = logits.reshape(-1, logits.shape[-1]).split(TOKENS_PER_CHUNK)
    normalizer = torch.cat([torch.logsumexp(chunk, dim=-1) for chunk in chunks]).view_as(chosen)
    return (chosen - normalizer)[:, :-1]


def recorded_pass(model: Any, batch: Batch, recorder: LayerLogitRecorder) -> Pass:
    """Recompute with the recorder."""
    with recorder.record(batch.positions, batch.targets) as recording:
        log_probs = log_probs_of(model, batch.ids)
    return log_probs, recording.seconds


def cost_of(run: Callable[[], Pass], device: str) -> tuple[float, float, int]:
    """Return the seconds of a pass and of the recorder's work in it, and its most bytes of GPU memory (0 on a CPU)."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()  # weights and inputs
    started = time.perf_counter()
    _, own_seconds = run()
    wait()
    return time.perf_counter() - started, own_seconds, torch.cuda.max_memory_allocated() - before


@torch.no_grad()
def measure(shape: Shape, device: str, rounds: int) -> Iterator[Line]:
    """Compare the two passes, then yield what they cost; on a CPU without the memory."""
    model, batch = make_model(shape, device), make_batch(shape, device)
    recorder = LayerLogitRecorder(model)
    passes = {
        "plain": lambda: (log_probs_of(model, batch.ids), 0.0),
        "recorder": lambda: recorded_pass(model, batch, recorder),
    }
    (plain, _), (recorded, _) = (run() for run in passes.values())  # also the warm-up
    assert torch.equal(plain, recorded), "the recorder changes the log-probs"
    del plain, recorded
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in passes}
    for index in range(rounds):
        for name in np.roll(list(passes), index).tolist():  # who goes first rotates
            found[name].append(cost_of(passes[name], device))
    seconds = {name: [total for total, *_ in costs] for name, costs in found.items()}
    yield from (Line(name, seconds[name], "s", seconds["plain"]) for name in passes)
    yield Line("recorder's own work", [100 * own / total for total, own, _ in found["recorder"]], "%", at_most=0.1)
    if device == "cuda":
        peaks = {name: max(peak for *_, peak in costs) / 1e6 for name, costs in found.items()}
        yield Line("recorder, peak memory over plain", [peaks["recorder"] - peaks["plain"]], "MB")


def main(command_line: list[str] | None = None) -> None:
    """Print the report."""
    parser = make_parser(__doc__, rounds=15)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args(command_line)
    shape = QUICK if arguments.quick else SHAPES[arguments.shape]
    print(machine(), f"{shape}, torch {torch.__version__}, {torch.get_num_threads()} threads\n", HEADER, sep="\n")
    print(*measure(shape, arguments.device, arguments.rounds), sep="\n")


if __name__ == "__main__":
    main()
