"""How many tokens a second an engine generates, by the number of sequences that it runs at a time; for a GPU.

    python ray_jobs/validate/random_model.py qwen2.5-math-7b model
    python -m benchmarks.sequences model --sequences 128 256 512 1024

An engine is started as OpenRLHF starts it, with each limit in turn, and gets all requests at once. The first line of
the table is vLLM's own limit of an engine that is started so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from meds_openrlhf.training import cpu

if not cpu.has_cuda():
    cpu.install()  # before vLLM


async def measure(model: str, sequences: int | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """Start an engine, warm it up, and time the requests."""
    import vllm
    from vllm.sampling_params import RequestOutputKind

    limits = {} if sequences is None else {"max_num_seqs": sequences, "max_num_batched_tokens": 16_384}
    engine = vllm.AsyncLLMEngine.from_engine_args(
        vllm.AsyncEngineArgs(
            model=model, load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True,
            max_model_len=arguments.prompt + arguments.tokens, gpu_memory_utilization=arguments.share,
            enforce_eager=not cpu.has_cuda(), **limits,
        )
    )  # fmt: skip
    sampling = vllm.SamplingParams(
        max_tokens=arguments.tokens, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
    )

    async def request(number: int) -> None:
        ids = [5 + (number * 7 + position) % 999 for position in range(arguments.prompt)]
        async for _ in engine.generate({"prompt_token_ids": ids}, sampling, str(number)):
            pass

    await asyncio.gather(*(request(number) for number in range(16)))
    began = time.perf_counter()
    await asyncio.gather(*(request(100 + number) for number in range(arguments.requests)))
    seconds = time.perf_counter() - began
    scheduler = engine.vllm_config.scheduler_config
    limit = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    engine.shutdown()
    return {"limits": limit, "seconds": seconds, "tokens_per_second": arguments.requests * arguments.tokens / seconds}


def main() -> None:
    """Print a table, a line as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder; its weights are not read")
    parser.add_argument("--sequences", type=int, nargs="*", default=[256, 512, 1024])
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=150, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=1024, help="of a response")
    parser.add_argument("--share", type=float, default=0.7, help="of the GPU's memory")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    print("| sequences at a time | tokens a step | seconds | tokens a second |\n|---|---|---|---|", flush=True)
    found = []
    for sequences in (None, *arguments.sequences):
        found.append(asyncio.run(measure(arguments.model, sequences, arguments)))
        cells = [f"{limit:,}" for limit in found[-1]["limits"]]
        cells += [f"{found[-1]['seconds']:.1f}", f"{found[-1]['tokens_per_second']:,.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
