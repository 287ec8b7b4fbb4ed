"""What vLLM's front end does for responses handed over with each of their tokens, or once when they are finished.

The front end is the thread of an engine's actor that takes tokens from the process with the model, turns them into text
and passes responses on. Its CPU time does not depend on how fast the model is. Both kinds are measured in turns, with
the same seeds, and must give the same responses. Any model will do:

    python -m benchmarks.responses --model assets/arithmetic/policy --requests 256 --tokens 64
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from meds_openrlhf.training.cpu import ENVIRONMENT

ROUNDS = 6  # the first warms up
KINDS = ("CUMULATIVE", "FINAL_ONLY")


async def measure(model: str, requests: int, tokens: int, log_probs: int | None) -> dict[str, np.ndarray]:
    """CPU seconds of the front end for each kind, (ROUNDS - 1,). Raises AssertionError if responses differ."""
    import vllm
    from vllm.sampling_params import RequestOutputKind

    options: dict[str, Any] = {"max_num_seqs": requests, "enforce_eager": True, "disable_log_stats": True}
    options |= {"enable_log_requests": False, "max_model_len": tokens + 8, "dtype": "bfloat16"}
    engine = vllm.AsyncLLMEngine.from_engine_args(vllm.AsyncEngineArgs(model=model, **options))

    async def respond(kind: str, round_: int, number: int) -> list[int]:
        params = vllm.SamplingParams(
            max_tokens=tokens,
            min_tokens=tokens,
            seed=number,
            logprobs=log_probs,
            output_kind=RequestOutputKind[kind],
        )
        prompt = {"prompt_token_ids": [4 + number % 8] * 4}
        async for output in engine.generate(prompt, params, f"{kind}-{round_}-{number}"):
            final = output
        assert log_probs is None or len(final.outputs[0].logprobs) == tokens
        return list(final.outputs[0].token_ids)

    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for round_ in range(ROUNDS):
        responses = []
        for kind in KINDS:
            started = time.process_time()
            responses.append(await asyncio.gather(*(respond(kind, round_, number) for number in range(requests))))
            seconds[kind].append(time.process_time() - started)
        assert responses[0] == responses[1]
    engine.shutdown()
    return {kind: np.array(values[1:]) for kind, values in seconds.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the rows of the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.responses", description=__doc__)
    parser.add_argument("--model", required=True, help="a model's folder or its name on the hub")
    parser.add_argument("--requests", type=int, default=256, help="responses at a time (256)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a response (64)")
    args = parser.parse_args(argv)
    os.environ.update({**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"})  # the model in a process of its own
    for name, log_probs in (("tokens", None), ("tokens and log-probs", 1)):
        seconds = asyncio.run(measure(args.model, args.requests, args.tokens, log_probs))
        each, once = (1e6 * seconds[kind] / (args.requests * args.tokens) for kind in KINDS)
        print(f"| {name} | {np.median(each):.1f} | {np.median(once):.1f} | {np.median(once / each):.2f} |")


if __name__ == "__main__":
    main()
