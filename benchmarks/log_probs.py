"""What it costs an engine to return the log-prob of every token (`vllm_kl`): vLLM with and without, in turns.

A tiny policy, so that the work per token that is not the model's counts most. Run:

    python -m benchmarks.log_probs
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.table import HEADER, Line, machine, make_parser, timed
from meds_openrlhf.arithmetic.warm_start import WarmStartRecipe, prepare
from meds_openrlhf.runtime.devices import cpu_environment, has_cuda

PROMPTS, SAMPLES, TOKENS = 16, 8, 64
NUMBERS = {"without": None, "its own": 0, "and the likeliest": 1}  # of log-probs that a request asks for


def main(command_line: list[str] | None = None) -> None:
    """Print the table."""
    arguments = make_parser(__doc__, rounds=5).parse_args(command_line)
    os.environ.update({} if has_cuda() else cpu_environment())
    from vllm import LLM, SamplingParams

    print(machine())
    prompts = [f"{number} + {number} = " for number in range(4 if arguments.quick else PROMPTS)]
    with tempfile.TemporaryDirectory() as folder:
        policy = prepare(Path(folder, "task"), recipe=WarmStartRecipe(steps=1)).policy
        limits = {"max_model_len": 256, "max_logprobs": 1, "logprobs_mode": "processed_logprobs"}
        engine = LLM(str(policy), dtype="bfloat16", enforce_eager=not has_cuda(), disable_log_stats=True, **limits)

        def generate(number: int | None) -> object:
            sampling = SamplingParams(n=SAMPLES, max_tokens=TOKENS, ignore_eos=True, logprobs=number)
            return engine.generate(prompts, sampling, use_tqdm=False)

        found = [
            {name: timed(generate, number)[0] for name, number in NUMBERS.items()} for _ in range(arguments.rounds + 1)
        ]
    print(HEADER)
    for name in NUMBERS:
        values, plain = ([of_round[key] for of_round in found[1:]] for key in (name, "without"))
        print(Line(f"{len(prompts) * SAMPLES} responses of {TOKENS} tokens, log-prob: {name}", values, "ms", plain))


if __name__ == "__main__":
    main()
