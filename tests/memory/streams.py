"""Recorded-feature streams for the memory's tests: prompts that come back with errors of a few kinds."""

import numpy as np
import pyarrow as pa

from meds_openrlhf.memory.rows import make_rows

LAYERS = 8


def stream(steps: int, prompts: int = 6, per_step: int = 4, rollouts: int = 6, seed: int = 0) -> list[pa.RecordBatch]:
    """``steps`` batches; each visits ``per_step`` of ``prompts`` with up to ``rollouts`` wrong ones, many repeated."""
    generator = np.random.default_rng(seed)
    modes = generator.normal(size=(prompts, 3, LAYERS)) * 4
    batches = []
    for step in range(steps):
        sample: list[int] = []
        keys: list[str] = []
        logits: list[np.ndarray] = []
        for slot in range(per_step):
            prompt = (step * per_step + slot) % prompts
            for rollout in range(rollouts):
                if generator.random() < 0.2:
                    continue  # a right answer: no row
                scatter = 0.0 if generator.random() < 0.4 else 0.2  # word-for-word repeats are common
                mode = modes[prompt, generator.integers(3)]
                sample.append(slot * rollouts + rollout)
                keys.append(f"prompt-{prompt}")
                logits.append(mode + scatter * generator.normal(size=LAYERS))
        batches.append(make_rows(sample, keys, [False] * len(sample), np.array(logits, dtype=np.float32)))
    return batches
