"""The recorder and the estimate of GPU memory on a real GPU. Needs torch and transformers, no vLLM."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from benchmarks import recorder as benchmark
from meds_openrlhf.features.layout import packed_positions
from meds_openrlhf.features.recorder import LayerLogitRecorder
from meds_openrlhf.placement.memory_estimate import footprints
from tests.features.models import VOCABULARY, the_long_way
from tests.features.test_recorder import HAVE, padded_batch, record
from tests.placement.clusters import QWEN, SHAPES, arguments, models

DEVICE, ATTENTION = "cuda", "flash_attention_2"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def moved(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(DEVICE) for name, value in inputs.items()}


def test_packed_rows_with_flash_attention_are_the_long_way_of_each_row() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=ATTENTION)
    model = model.to(DEVICE).eval()
    inputs, positions, targets = padded_batch("right")
    mask = inputs["attention_mask"].bool()
    packed = {name: inputs[name][mask][None] for name in ("input_ids", "position_ids")}
    recorded = record(model, moved(packed), packed_positions(positions, inputs["attention_mask"]), targets)
    for row in HAVE:
        alone = moved({name: inputs[name][row][mask[row]][None] for name in ("input_ids", "position_ids")})
        expected = the_long_way(model, alone, positions[[row]].to(DEVICE), targets[[row]].to(DEVICE))
        torch.testing.assert_close(recorded[[row]], expected, atol=2**-6, rtol=2**-5)
    assert recorded[2].isnan().all()


def test_the_host_never_waits_inside_the_recorders_pass() -> None:
    shape = benchmark.SHAPES["qwen2.5-7b"]._replace(layers=2, batch=2, length=512)
    model, batch = benchmark.make_model(shape, DEVICE), benchmark.make_batch(shape, DEVICE)
    try:
        with torch.no_grad(), LayerLogitRecorder(model).record(batch.positions, batch.targets):
            torch.cuda.set_sync_debug_mode("error")
            # Given a mask to look at, or none at all, transformers itself waits for the device; a ready one is used.
            model(input_ids=batch.ids, attention_mask={"full_attention": None})
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("length", [4096, 8192])
def test_a_recompute_takes_the_memory_that_the_plan_estimates(length: int) -> None:
    shape = benchmark.SHAPES["qwen2.5-7b"]._replace(batch=4, length=length)
    model, batch = benchmark.make_model(shape, DEVICE), benchmark.make_batch(shape, DEVICE)
    weights = 2 * sum(parameter.numel() for parameter in model.parameters())
    assert weights == pytest.approx(2 * SHAPES[QWEN].parameters, rel=0.01)
    # A frozen model of one rank, whose footprint is its weights, the process, and the recompute's work.
    args = arguments("reference", ds__zero_stage=0, rollout__micro_batch_size=4, data__max_len=length)
    ranks = {"policy": 1, "engines": 1, "reference": 1}
    estimate = footprints(args, models("reference"), ranks, 0.0)["reference"]
    work = estimate.peak - estimate.resting
    with torch.no_grad():
        _, _, taken = benchmark.cost_of(lambda: (benchmark.log_probs_of(model, batch.ids), 0.0), DEVICE)
    assert weights + taken == pytest.approx(weights + work, rel=0.1)
