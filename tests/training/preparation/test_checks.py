"""What is refused before anything starts, on small files."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from transformers import LlamaConfig, T5Config

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.plan import RoleRequest
from meds_openrlhf.training.preparation import checks
from meds_openrlhf.training.preparation.arguments import parse_openrlhf_arguments
from meds_openrlhf.training.roles import role_requests

BASE = {
    "vllm.num_engines": 2,
    "actor.num_gpus_per_node": 4,
    "ref.num_gpus_per_node": 4,
    "algo.advantage.estimator": "group_norm",
    "rollout.n_samples_per_prompt": 4,
    "reward.remote_url": "reward.py",
}


def prompt_ids(rows: list[dict], template: str | None = None) -> dict[str, str]:
    data = SimpleNamespace(apply_chat_template=False, input_template=template, input_key="prompt", label_key=None)
    tokenizer = SimpleNamespace(apply_chat_template=None)
    return checks.prompt_ids(Dataset.from_list(rows), SimpleNamespace(data=data), tokenizer, "id")


def test_prompt_ids_are_keyed_by_the_text_that_the_engines_get() -> None:
    rows = [{"id": 7, "prompt": "1+1"}, {"id": 8, "prompt": "1+2"}, {"id": 7, "prompt": "1+1"}]
    assert prompt_ids(rows, "Q: {}") == {"Q: 1+1": "7", "Q: 1+2": "8"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("7", "a"), ("8", "a")], "gives one prompt two ids, 7 and 8"),
        ([("7", "a"), ("7", "b")], "gives two prompts the id 7"),
        ([("7", "a"), (None, "b")], "is empty for the prompt 'b'"),
    ],
)
def test_ids_that_would_mix_memories_are_refused(rows: list[tuple], message: str) -> None:
    with pytest.raises(ConfigError, match=f"meds.memory.prompt_id_key: 'id' {message}"):
        prompt_ids([{"id": key, "prompt": text} for key, text in rows])


def args_of(**flags: Any) -> SimpleNamespace:
    return parse_openrlhf_arguments({**BASE, **flags})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"algo.kl.init_coef": 0}, [("policy", 1, 4), ("engines", 2, 1)]),
        ({}, [("policy", 1, 4), ("engines", 2, 1), ("reference", 1, 4)]),
        (
            {"train.colocate_actor_ref": True},
            [("policy", 1, 4), ("engines", 2, 1), ("reference", 1, 4, "policy")],
        ),
        (
            {"train.colocate_all": True, "vllm.num_engines": 2, "vllm.tensor_parallel_size": 2},
            [("policy", 1, 4), ("engines", 2, 2, "policy"), ("reference", 1, 4, "policy")],
        ),
        (
            {"train.colocate_all": True, "train.async_enable": True, "algo.kl.init_coef": 0},
            [("policy", 1, 4), ("engines", 2, 1)],  # they generate while the policy trains
        ),
        (
            {"algo.advantage.estimator": "gae", "critic.num_gpus_per_node": 3, "algo.kl.init_coef": 0},
            [("policy", 1, 4), ("engines", 2, 1), ("critic", 1, 3)],
        ),
    ],
)
def test_roles_ask_for_what_openrlhf_gives_them(flags: dict, expected: list[tuple]) -> None:
    flags = {"actor.model_name_or_path": "m", **flags}
    assert role_requests(args_of(**flags)) == [RoleRequest(*one) for one in expected]


def test_an_architecture_that_cannot_be_recorded_is_refused_without_loading_weights() -> None:
    args = args_of(**{"actor.model_name_or_path": "some/model"})
    checks.require_recordable(args, LlamaConfig(hidden_size=8192, num_hidden_layers=80))  # a 70B one, in no time
    with pytest.raises(ConfigError, match=r"actor.model_name_or_path: 'some/model' \(T5Config\)"):
        checks.require_recordable(args, T5Config())


def test_room_for_one_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ckpt.max_num: 1 leaves no whole checkpoint"):
        checks.require_two_checkpoints(args_of(**{"ckpt.max_num": 1, "ckpt.save_steps": 5}))
    checks.require_two_checkpoints(args_of(**{"ckpt.max_num": 1}))  # nothing is saved on the way


def test_local_files_get_their_full_names_and_hub_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "x"}))
    flags = {"data.prompt_dataset": "a.jsonl,owner/name", "actor.model_name_or_path": "owner/model", "train.seed": 1}
    assert checks.with_absolute_paths(flags) == {
        "data.prompt_dataset": f"{tmp_path}/a.jsonl,owner/name",
        "actor.model_name_or_path": "owner/model",
        "train.seed": 1,
    }
