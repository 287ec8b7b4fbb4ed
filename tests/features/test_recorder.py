"""The recorder against the long way: output_hidden_states and the full unembedding matrix."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from meds_openrlhf.features import recorder as recorder_module
from meds_openrlhf.features.kind import FeatureFunction
from meds_openrlhf.features.layout import packed_positions, padded_positions
from meds_openrlhf.features.recorder import LayerLogitRecorder
from tests.features.models import CONFIGS, LAYERS, VOCABULARY, make_model, the_long_way, with_adapters

WIDTH = 12
HAVE = [0, 1, 3]  # rows with an answer


def padded_batch(side: str) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Inputs of (4, 12), positions and targets (4,); the third row has no answer."""
    torch.manual_seed(1)
    ids = torch.randint(5, VOCABULARY, (4, WIDTH))
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 3, 5, 1)):
        mask[row, :padding] = 0
    if side == "right":
        mask = mask.flip(1)
    positions = torch.tensor([9, 6, -1, 3]) if side == "left" else torch.tensor([9, 4, -1, 3])
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    return inputs, positions, ids[torch.arange(4), positions + 1]


def record(model: torch.nn.Module, inputs: dict, *at: torch.Tensor, **options: Any) -> torch.Tensor:
    """Layer logits, by a recorder with these options, ``at`` flat tokens and their targets."""
    with torch.no_grad(), LayerLogitRecorder(model, **options).record(*at) as recording:
        model(**inputs)
    assert recording.layer_logits is not None
    return recording.layer_logits


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_long_way_in_float32(name: str) -> None:
    model = make_model(name)
    inputs, positions, targets = padded_batch("left")
    if name.endswith("-vl"):
        del inputs["position_ids"]  # such models compute their own
    tokens = padded_positions(positions, WIDTH)
    recorded = record(model, inputs, tokens, targets)
    assert recorded.shape == (4, LAYERS)
    assert recorded.dtype == torch.float32
    expected = the_long_way(model, inputs, tokens[HAVE], targets[HAVE])
    torch.testing.assert_close(recorded[HAVE], expected, atol=1e-5, rtol=1e-5)
    assert recorded[2].isnan().all()
    assert record(model, inputs, torch.full((4,), -1), targets).isnan().all()


def test_a_function_of_the_users_gets_the_hidden_states_at_the_answers() -> None:
    model = make_model(next(iter(CONFIGS)))
    inputs, positions, targets = padded_batch("left")
    tokens, seen = padded_positions(positions, WIDTH), list[torch.Tensor]()

    def first_values(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden)
        return hidden[:, :, 0]

    function = FeatureFunction(Path("my.py"), "from_hidden_states", LAYERS, first_values)
    recorded = record(model, inputs, tokens, targets, function=function)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states[1:]  # the last is after the final norm
    expected = torch.stack(states, 1)
    expected = expected.permute(0, 2, 1, 3).reshape(-1, LAYERS, expected.shape[-1])[tokens[HAVE]]
    torch.testing.assert_close(seen[0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(recorded[HAVE], expected[:, :, 0], atol=1e-5, rtol=1e-5)
    assert recorded[2].isnan().all()
    none = record(model, inputs, torch.full((4,), -1), targets, function=function)
    assert none.isnan().all()
    assert len(seen) == 1
    recording = recorder_module.Recording(torch.tensor([1]), torch.tensor([0]), torch.device("cpu"))
    recording.keep_hidden(None, None, (torch.tensor([[[1.0, 2], [3, 4]]]), None))  # a layer may return more
    assert recording._hidden[0].tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama"])
def test_packed_sequences(name: str) -> None:
    """Rows one after the other without padding, told apart by position ids alone, give what padded rows give."""
    model = make_model(name)
    inputs, positions, targets = padded_batch("right")
    mask = inputs["attention_mask"].bool()
    packed = {name: inputs[name][mask][None] for name in ("input_ids", "position_ids")}
    packed["use_cache"] = False  # as OpenRLHF sets it; with a cache transformers does not look for packed rows
    tokens = packed_positions(positions, inputs["attention_mask"])
    recorded = record(model, packed, tokens, targets)
    expected = the_long_way(model, packed, tokens[HAVE], targets[HAVE])
    torch.testing.assert_close(recorded[HAVE], expected, atol=1e-5, rtol=1e-5)
    padded = record(model, inputs, padded_positions(positions, WIDTH), targets)
    torch.testing.assert_close(recorded, padded, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("modules", [("q_proj", "down_proj"), ("q_proj", "lm_head")])
def test_lora_adapters_count(modules: tuple[str, ...]) -> None:
    base = make_model("qwen2")
    model = with_adapters(base, modules)
    inputs, positions, targets = padded_batch("right")
    tokens = padded_positions(positions, WIDTH)
    recorded = record(model, inputs, tokens, targets)[HAVE]
    expected = the_long_way(base, inputs, tokens[HAVE], targets[HAVE])
    torch.testing.assert_close(recorded, expected, atol=1e-4, rtol=1e-4)
    plain = record(make_model("qwen2"), inputs, tokens, targets)[HAVE]
    assert not torch.allclose(plain, recorded, atol=1e-2)


@pytest.mark.parametrize("state", ["merged", "disabled"])
def test_adapters_that_the_weight_has_already_or_that_are_off_do_not_count(state: str) -> None:
    base = make_model("qwen2")
    model = with_adapters(base, ("lm_head",))
    inputs, positions, targets = padded_batch("right")
    tokens = padded_positions(positions, WIDTH)
    model.base_model.merge_adapter() if state == "merged" else model.base_model.disable_adapter_layers()
    recorded = record(model, inputs, tokens, targets)[HAVE]
    torch.testing.assert_close(recorded, the_long_way(base, inputs, tokens[HAVE], targets[HAVE]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [{"use_dora": True}, {"lora_bias": True}])
def test_adapters_of_the_unembedding_that_are_more_than_a_product_are_refused(kind: dict[str, bool]) -> None:
    model = get_peft_model(make_model("qwen2"), LoraConfig(r=2, target_modules=["lm_head"], **kind))
    with pytest.raises(ValueError, match=r"the unembedding's adapter is more than a product \(DoRA, or a bias\)"):
        LayerLogitRecorder(model)
    elsewhere = get_peft_model(make_model("qwen2"), LoraConfig(r=2, target_modules=["q_proj"], **kind))
    LayerLogitRecorder(elsewhere)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    model = make_model("qwen2")
    inputs, positions, targets = padded_batch("right")
    tokens = padded_positions(positions, WIDTH)
    expected = record(model, inputs, tokens, targets)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    with LayerLogitRecorder(model).record(tokens, targets) as recording:
        loss = model(**inputs).logits.sum()
    loss.backward()
    assert recording.layer_logits is not None
    torch.testing.assert_close(recording.layer_logits.detach(), expected, equal_nan=True)
    assert not recording.layer_logits.requires_grad


def test_leaves_no_hook_and_changes_no_output_also_where_a_pass_fails() -> None:
    model = make_model("qwen2")
    inputs, positions, targets = padded_batch("right")
    with torch.no_grad():
        before = model(**inputs).logits
        with LayerLogitRecorder(model).record(padded_positions(positions, WIDTH), targets) as recording:
            during = model(**inputs).logits
    assert torch.equal(before, during)
    assert recording.seconds > 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    none = torch.tensor([-1])
    with pytest.raises(KeyError, match="mine"), LayerLogitRecorder(model).record(none, none):
        raise KeyError("mine")
    assert not any(module._forward_hooks for module in model.modules())


def test_what_cannot_be_recorded_is_refused() -> None:
    model, none = make_model("qwen2"), torch.tensor([-1])
    with (
        pytest.raises(RuntimeError, match="expected one pass over 5 layers"),
        LayerLogitRecorder(model).record(none, none),
    ):
        pass
    with pytest.raises(ValueError, match="the decoder layers of Linear cannot be found"):
        LayerLogitRecorder(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="the policy is compiled"):
        LayerLogitRecorder(torch.compile(model))
    model.compile()
    with pytest.raises(ValueError, match="the policy is compiled"):
        LayerLogitRecorder(model)


def test_nothing_of_a_hidden_state_outlives_its_layer() -> None:
    model = make_model("qwen2")
    recorder = LayerLogitRecorder(model)
    with torch.no_grad(), recorder.record(torch.tensor([3]), torch.tensor([7])) as recording:
        model(torch.ones(1, 128, dtype=torch.long))
        assert recording._hidden == []
        assert [logit.untyped_storage().nbytes() for logit in recording._logits] == [4] * LAYERS


def test_a_rank_with_a_part_of_the_unembedding_leaves_the_other_rows_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As DeepSpeed's AutoTP cuts it; what the ranks found is added up over every group."""
    model = make_model("qwen2")
    inputs, positions, _ = padded_batch("right")
    tokens, half = padded_positions(positions, WIDTH), VOCABULARY // 2
    targets = torch.tensor([half - 1, half, 0, VOCABULARY - 1])
    model.lm_head.bias = torch.nn.Parameter(torch.linspace(-1, 1, VOCABULARY))
    expected = record(model, inputs, tokens, targets)
    whole, bias = model.lm_head.weight.data, model.lm_head.bias.data
    parts, groups = [], []

    def add_up(total: torch.Tensor, group: str) -> None:
        groups.append(group)
        parts.append(total.clone())

    monkeypatch.setattr(recorder_module.dist, "all_reduce", add_up)
    for rank in (0, 1):
        model.lm_head.weight.data = whole[half:] if rank else whole[:half]
        model.lm_head.bias.data = bias[half:] if rank else bias[:half]
        sizes = [half, VOCABULARY - half]
        for name, value in {"gather_output": True, "_partition_sizes": sizes, "tp_index": rank}.items():
            setattr(model.lm_head, name, value)
        with torch.no_grad(), LayerLogitRecorder(model, groups=("ring", "tensor")).record(tokens, targets) as recording:
            model(**inputs)
        assert recording.layer_logits is not None
        assert recording.layer_logits[:, 0].isnan().tolist() == [rank == 1, rank == 0, True, rank == 0]
    assert groups == ["ring", "tensor"] * 2
    total = parts[0] + parts[2]
    torch.testing.assert_close(total[:, :-1] / total[:, -1:], expected, equal_nan=True)
