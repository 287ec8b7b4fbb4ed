"""Making the demo's assets: what lies in the folder, and when it is made anew."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from meds_openrlhf.arithmetic.warm_start import WarmStartRecipe, prepare
from meds_openrlhf.data.questions import qwen_math_prompt
from tests.failing import failing

SIZES = dict(layers=2, hidden_size=32, heads=1, steps=3, batch_size=4)
TINY = WarmStartRecipe(**SIZES, train_problems=4, eval_problems=2, other_problems=8)


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("assets") / "arithmetic", seed=0, recipe=TINY)


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_rows_hold_the_templated_problem_and_its_answer(assets):
    train, evaluation = rows(assets.train), rows(assets.eval)
    row = {"prompt": qwen_math_prompt("25+26"), "answer": "51", "datasource": "arithmetic"}
    assert train[1] == {"id": "arith-000001", **row}
    assert [row["id"] for row in train + evaluation] == [f"arith-{number:06d}" for number in range(6)]
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in evaluation}


def test_the_policy_loads_with_its_tokenizer_and_stops_at_the_end_of_a_turn(assets):
    policy = AutoModelForCausalLM.from_pretrained(assets.policy)
    tokenizer = AutoTokenizer.from_pretrained(assets.policy, use_fast=True)
    assert policy.config.model_type == "qwen2"
    assert policy.dtype == torch.bfloat16
    assert policy.lm_head.weight.shape == (len(tokenizer), 32)
    assert policy.generation_config.eos_token_id == tokenizer.eos_token_id == tokenizer.encode("<|im_end|>")[0]


def test_another_seed_gives_other_assets_and_training_lowers_the_loss(assets, tmp_path):
    lines = []
    other = prepare(tmp_path / "other", seed=1, recipe=replace(TINY, steps=80), report=lines.append)
    assert other.train.read_text() != assets.train.read_text()
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert len(losses) == 2
    assert losses[0] < 5.56  # ln 261: what a policy that knows nothing pays
    assert losses[1] < losses[0] - 0.1


def test_assets_are_reproducible_and_replaced_whole(assets, tmp_path):
    out = tmp_path / "arithmetic"
    again = prepare(out, seed=0, recipe=TINY)
    assert again.train.read_text() == assets.train.read_text()
    ours, theirs = (AutoModelForCausalLM.from_pretrained(made.policy).state_dict() for made in (assets, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    (out / "mark").touch()
    lines = []
    prepare(out, recipe=TINY, report=lines.append)
    assert lines == [f"the arithmetic policy and its problems are already in {out}"]
    with pytest.raises(KeyboardInterrupt):
        prepare(out, seed=1, recipe=TINY, report=failing(KeyboardInterrupt()))
    assert (out / "mark").exists()
    assert again.train.read_text() == assets.train.read_text()

    changed = prepare(out, recipe=replace(TINY, train_problems=5))
    assert not (out / "mark").exists()
    assert len(rows(changed.train)) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["arithmetic"]
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="contains files other than the demo's assets"):
        prepare(tmp_path, recipe=TINY)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
