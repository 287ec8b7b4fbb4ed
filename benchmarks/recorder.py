"""What recording layer logits adds to the log-prob recompute: time, GPU memory, and waits for the GPU.

Three ways to do one pass alternate in one process:

- plain: OpenRLHF's log-prob recompute of a batch, nothing recorded;
- recorder: the same with `LayerLogitRecorder`;
- hidden states: the same with `output_hidden_states=True`, then each layer's row at the answer position times the whole
  unembedding matrix, of which the target's logit is kept.

Before anything is timed, the layer logits of the second and the third are compared. From the repository's root:

    python -m benchmarks.recorder
    python -m benchmarks.recorder --shape qwen2.5-7b --device cuda
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from benchmarks.table import HEADER, Line, machine, make_parser
from meds_openrlhf.features.layout import padded_positions
from meds_openrlhf.features.recorder import LayerLogitRecorder

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
    dtype: torch.dtype


QUICK = Shape(
    layers=3, hidden=32, heads=4, kv_heads=2, intermediate=48, vocabulary=97, batch=3, length=16, dtype=torch.float32
)
SHAPES = {
    "small": Shape(
        layers=12, hidden=512, heads=8, kv_heads=4, intermediate=1408, vocabulary=32768,
        batch=8, length=512, dtype=torch.float32,
    ),
    "qwen2.5-7b": Shape(
        layers=28, hidden=3584, heads=28, kv_heads=4, intermediate=18944, vocabulary=152064,
        batch=8, length=4096, dtype=torch.bfloat16,
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
    """Log-probs (B, T - 1) of a pass, its layer logits (B, N) if it has any, and the seconds of the recorder's work."""

    log_probs: torch.Tensor
    layer_logits: torch.Tensor | None = None
    own_seconds: float = 0.0


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
    return Batch(ids.to(device), positions, ids[torch.arange(shape.batch), positions + 1])


def log_probs_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return OpenRLHF's log-probs (B, T - 1) of the tokens after the first, from logits (B, T, V)."""
    logits = logits.to(torch.float32)
    labels = torch.roll(ids, shifts=-1, dims=1)
    chosen = torch.gather(logits, dim=-1, index=labels[..., None])[..., 0]
    chunks = logits.reshape(-1, logits.shape[-1]).split(TOKENS_PER_CHUNK)
    normalizer = torch.cat([torch.logsumexp(chunk, dim=-1) for chunk in chunks]).view_as(chosen)
    return (chosen - normalizer)[:, :-1]


def plain_pass(model: Any, batch: Batch) -> Pass:
    """Recompute, and nothing else."""
    return Pass(log_probs_of(model(**batch.inputs).logits, batch.ids))


def recorded_pass(model: Any, batch: Batch, recorder: LayerLogitRecorder) -> Pass:
    """Recompute with the recorder."""
    tokens = padded_positions(batch.positions, batch.ids.shape[1])
    with recorder.record(tokens, batch.targets) as recording:
        log_probs = log_probs_of(model(**batch.inputs).logits, batch.ids)
    return Pass(log_probs, recording.layer_logits, recording.seconds)


def hidden_states_pass(model: Any, batch: Batch) -> Pass:
    """Recompute with all hidden states, and put a row of each through the whole unembedding."""
    output = model(**batch.inputs, output_hidden_states=True)
    log_probs = log_probs_of(output.logits, batch.ids)
    rows = torch.arange(len(batch.ids), device=batch.ids.device)
    positions, targets = batch.positions.to(rows.device), batch.targets.to(rows.device)
    unembedding = model.get_output_embeddings()
    logits = [unembedding(hidden[rows, positions])[rows, targets] for hidden in output.hidden_states[1:]]
    return Pass(log_probs, torch.stack(logits, dim=1).float())


def check_no_synchronization(model: Any, batch: Batch, recorder: LayerLogitRecorder) -> None:
    """Raise RuntimeError if a recorded forward pass, or what the recorder does after it, makes the host wait."""
    tokens = padded_positions(batch.positions, batch.ids.shape[1])
    try:
        with recorder.record(tokens, batch.targets):
            torch.cuda.set_sync_debug_mode("error")
            # Given a mask to look at, or none at all, transformers itself waits for the device; a ready one is used.
            model(input_ids=batch.ids, attention_mask={"full_attention": None})
    finally:
        torch.cuda.set_sync_debug_mode("default")


def seconds_of(run: Callable[[], Pass], device: str) -> tuple[float, float]:
    """Return the seconds of a pass, and of the recorder's work in it."""
    _synchronize(device)
    started = time.perf_counter()
    result = run()
    _synchronize(device)
    return time.perf_counter() - started, result.own_seconds


def peak_bytes(run: Callable[[], Pass]) -> int:
    """Return the most bytes of GPU memory that one pass takes, without weights and inputs."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def measure(shape: Shape, device: str, rounds: int) -> Iterator[Line]:
    """Compare and check the three passes, then yield what they cost; on a CPU without the memory."""
    model, batch = make_model(shape, device), make_batch(shape, device)
    recorder = LayerLogitRecorder(model)
    passes = {
        "plain": lambda: plain_pass(model, batch),
        "recorder": lambda: recorded_pass(model, batch, recorder),
        "hidden states": lambda: hidden_states_pass(model, batch),
    }
    plain, recorded, expected = (run() for run in passes.values())  # also the warm-up
    assert torch.equal(plain.log_probs, recorded.log_probs), "the recorder changes the log-probs"
    atol, rtol = (1e-4, 1e-4) if shape.dtype == torch.float32 else (2**-7, 2**-6)
    torch.testing.assert_close(recorded.layer_logits, expected.layer_logits, atol=atol, rtol=rtol)
    del plain, recorded, expected
    if device == "cuda":
        check_no_synchronization(model, batch, recorder)
        peaks = {name: peak_bytes(run) / 1e6 for name, run in passes.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in passes}
    for index in range(rounds):
        for name in np.roll(list(passes), index).tolist():  # who goes first rotates
            found[name].append(seconds_of(passes[name], device))
    seconds = {name: [total for total, _ in values] for name, values in found.items()}
    for name in passes:
        yield Line(name, seconds[name], "s", seconds["plain"])
    yield Line("recorder's own work", [100 * own / total for total, own in found["recorder"]], "%", at_most=0.1)
    if device == "cuda":
        for name in ("recorder", "hidden states"):
            yield Line(f"{name}, peak memory over plain", [peaks[name] - peaks["plain"]], "MB")


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
