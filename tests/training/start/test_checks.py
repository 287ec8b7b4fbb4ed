"""What is refused before anything starts, on small files and configurations of models."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from transformers import (
    DeepseekV3Config,
    GPT2Config,
    LlamaConfig,
    ModernBertDecoderConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3NextConfig,
    T5Config,
)

from meds_openrlhf.checkpoints import Checkpoint
from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig, load_config
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.inventory import imagined_cluster
from meds_openrlhf.training.openrlhf.access import parse_openrlhf_arguments
from meds_openrlhf.training.start import checks
from meds_openrlhf.training.start.placing import models_of
from meds_openrlhf.training.start.prepare import plan_run, prepare, with_absolute_paths
from tests.training.step.rollouts import arguments

BASE = """
meds.run_dir: run
vllm.num_engines: 2
actor: {model_name_or_path: ., num_gpus_per_node: 4}
algo.advantage.estimator: group_norm
data.prompt_dataset: .
rollout.n_samples_per_prompt: 4
reward.remote_url: reward.py
"""
CRITIC = "--algo.advantage.estimator=gae --critic.model_name_or_path=some/critic"
PROMPTS, EXTRAS, WEIGHTS = "--meds.policy.minibatches=prompts", "--meds.penalty.extras", "--meds.penalty.form=weights"
ONE = "--algo.advantage.estimator=flash_reinforce --rollout.n_samples_per_prompt=1"
LORA, FILTERED = "--ds.lora.rank=8", "--algo.dynamic_filtering_enable"
AGENT = "--reward.remote_url=null --train.agent_func_path=agent.py"
OVERLONG = "--rollout.max_new_tokens=64 --reward.overlong_buffer_len"
SHARED, CORRECTED = "--meds.placement.mode=colocate", "--algo.advantage.is_correction_level=token"
HYBRID = "--actor.model_name_or_path=hybrid"
PASS_AT = "--meds.exploration.pass_at_k"
ANSWER_BONUS = "--meds.exploration.answer_bonus=0.1 --meds.memory.preset=answers --meds.memory.remember=both"

# What each check refuses, and a part of the message.
REFUSED: dict[Callable[..., None], list[tuple[str, str]]] = {
    checks.require_positive: [
        *[
            (f"--{key}=0", f"{key}=0: must be at least 1.")
            for key in ("vllm.num_engines", "train.micro_batch_size", "train.num_episodes")
        ],
        ("--ckpt.save_steps=0", "ckpt.save_steps=0: must be at least 1, or -1 for never."),
        ("--vllm.num_engines=null", "vllm.num_engines: is not set. Set it to at least 1."),
    ],
    checks.require_reward: [
        ("--reward.remote_url=null", "meds.reward: the run has no reward. Set meds.reward="),
        ("--meds.reward=math", "meds.reward=math: would not be used, because reward.remote_url is set. Set one of"),
        (f"--meds.reward=math {AGENT}", "meds.reward=math: would not be used, because train.agent_func_path is set."),
        (f"{AGENT} --reward.remote_url=reward.py", "would not be used, because train.agent_func_path is set."),
    ],
    checks.require_sound_flags: [
        (
            "--train.async_enable --train.async_queue_size=2 --eval.dataset=some/data",
            "train.async_queue_size=2: would log evaluations of newer policies than their step's.",
        ),
        ("--ckpt.max_num=1 --ckpt.save_steps=5", "ckpt.max_num=1: leaves no complete checkpoint while the next"),
        ("--train.enable_ema", "train.enable_ema=True: is in no checkpoint, so no run could resume. Leave it"),
        ("--algo.kl.target=6", "algo.kl.target=6.0: adapts a coefficient that is in no checkpoint"),
        ("--ds.use_universal_ckpt", "ds.use_universal_ckpt=True: would load the converted checkpoint at every resume"),
        ("--rollout.vllm_generate_batch_size=512", "generate_batch_size=512: is below rollout.batch_size, 1024, which"),
        ("--ds.tensor_parallel_size=2 --ds.zero_stage=3", "tensor_parallel_size=2: does not work with ds.zero_stage=3"),
        (f"{OVERLONG}=65", "reward.overlong_buffer_len=65.0: is more than the 64 tokens of the longest response."),
        ("--data.disable_fast_tokenizer", "data.disable_fast_tokenizer=True: only a fast tokenizer gives"),
        ("--ds.param_dtype=fp16", "ds.param_dtype=fp16: does not reach engines. Leave it out."),
        ("--ds.param_dtype=fp32", "ds.param_dtype=fp32: is for machines without a GPU. Leave it out."),
        ("--ds.load_in_4bit", "ds.load_in_4bit=True: does not reach engines, which need whole weights. Leave it out."),
        (f"{SHARED} --vllm.sync_backend=gloo", "vllm.sync_backend=gloo: does not work where engines and policy share"),
        (f"--rollout.top_p=0.9 {CORRECTED}", "rollout.top_p=0.9: shifts all ratios of algo.advantage.is_correction"),
    ],
    checks.require_lora: [
        ("--ds.lora.rank=-1", "ds.lora.rank=-1: must be at least 1, or 0 to train all weights."),
        (f"{LORA} --ds.lora.alpha=0", "ds.lora.alpha=0: must be at least 1."),
        (f"{LORA} --ds.lora.dropout=1", "ds.lora.dropout=1.0: must be at least 0 and below 1."),
        (f"{LORA} --ds.tensor_parallel_size=2", "ds.tensor_parallel_size=2: does not work with ds.lora."),
    ],
    checks.require_extras: [
        (f"{EXTRAS}=32", "meds.penalty.extras=32: needs algo.dynamic_filtering_enable, which drops such groups."),
        (f"{EXTRAS}=33 {FILTERED}", "meds.penalty.extras=33: must be a multiple of 32 groups, which are whole mini-"),
    ],
    checks.require_relative_advantages: [
        (f"{WEIGHTS} {ONE}", "algo.advantage.estimator=flash_reinforce: meds.penalty.form needs advantages relative"),
        (f"{EXTRAS}=32 {FILTERED} {CRITIC}", "algo.advantage.estimator=gae: meds.penalty.extras needs advantages"),
    ],
    checks.require_minibatches: [
        (f"{PROMPTS} --train.batch_size=2", "be a multiple of the 4 to a prompt."),
        (f"{PROMPTS} --train.batch_size=12", "train.batch_size=12: must divide the 4096 responses of a step"),
        (
            "--train.batch_size=24",
            "train.batch_size=24: must divide the 4096 responses of a step (rollout.batch_size x",
        ),
        (f"{PROMPTS} {CRITIC}", "meds.policy.minibatches=prompts: a critic would train on other mini-batches."),
    ],
    checks.require_whole_responses: [
        (f"{HYBRID} --ds.packing_samples", "ds.packing_samples=True: joins responses, and "),
        (f"{HYBRID} --train.dynamic_batch_enable", "train.dynamic_batch_enable=True: joins responses, and "),
        (f"{HYBRID} --ds.ring_attn_size=2", "not attention (linear_attention), in which one would change"),
        (f"{CRITIC.replace('some/critic', 'hybrid')} --ds.packing_samples", "ds.packing_samples=True: joins responses"),
    ],
    checks.require_renewable_weights: [
        ("--actor.model_name_or_path=latent", "latent: has latent attention (kv_lora_rank), and")
    ],
    checks.require_splittable_heads: [
        ("--actor.model_name_or_path=llama --vllm.tensor_parallel_size=3", "_size=3: cannot split the 32 attention he")
    ],
    checks.require_exploration: [
        (f"{PASS_AT}=4", "meds.exploration.pass_at_k=4: must be below rollout.n_samples_per_prompt, 4."),
        (f"{PASS_AT}=3 --algo.advantage.estimator=rloo", "algo.advantage.estimator=rloo: pass_at_k works only with"),
        (f"{ANSWER_BONUS} {CRITIC}", "algo.advantage.estimator=gae: meds.exploration.answer_bonus does not support a"),
    ],
}


@pytest.fixture
def config_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RunConfig]:
    """The configuration of a run, changed by the words of a command line."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(BASE)
    Path("reward.py").write_text("reward_func = print")
    Path("agent.py").write_text("class AgentExecutor: ...")
    Qwen3NextConfig().save_pretrained("hybrid")
    DeepseekV3Config().save_pretrained("latent")
    LlamaConfig().save_pretrained("llama")
    return lambda words: load_config("run.yaml", words.split())


@pytest.mark.parametrize(("words", "message"), [case for cases in REFUSED.values() for case in cases])
def test_what_train_and_plan_refuse(words: str, message: str, config_with: Callable[[str], RunConfig]) -> None:
    """Both ask all checks, so that a plan that is shown is one that could be trained."""
    config = config_with(words)
    for ask in (
        lambda: plan_run(config, imagined_cluster("1x8", 140.0)),
        lambda: prepare(config, RunPaths(Path("run").absolute()), False, True, lambda: imagined_cluster("1x8")),
    ):
        with pytest.raises(ConfigError) as refused:
            ask()
        assert message in str(refused.value)


def test_every_check_refuses_something() -> None:
    assert set(REFUSED) == {*checks.OF_FLAGS, *checks.OF_ARGUMENTS, *checks.OF_MODELS}


FITTING = [
    "",
    "--ckpt.max_num=1",
    HYBRID,
    f"--rollout.top_p=0.9 {SHARED} --vllm.sync_backend=nccl",
    f"{LORA} --ds.lora.dropout=0.5",
    AGENT,
]
FITTING += [f"{OVERLONG}=64", f"{EXTRAS}=64 {FILTERED} {WEIGHTS}", f"{PROMPTS} --train.batch_size=16", f"{PASS_AT}=3"]
FITTING += [f"{ANSWER_BONUS} {ONE}"]


@pytest.mark.parametrize("words", FITTING)
def test_what_goes_together(words: str, config_with: Callable[[str], RunConfig]) -> None:
    config = config_with(words)
    for check in checks.OF_FLAGS:
        check(config, config.openrlhf)
    args = parse_openrlhf_arguments(config.openrlhf)
    for ask in checks.OF_ARGUMENTS:
        ask(config, args)
    for ask_models in checks.OF_MODELS:
        ask_models(args, models_of(args, trusted=False))


def test_local_files_get_their_full_names_and_hub_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "x"}))
    (tmp_path / "mix").mkdir()
    names = "a.jsonl,owner/name, mix@sub,owner/name@sub"
    flags = {"data.prompt_dataset": names, "actor.model_name_or_path": "owner/model", "train.seed": 1}
    assert with_absolute_paths(flags) == {
        "data.prompt_dataset": f"{tmp_path}/a.jsonl,owner/name,{tmp_path}/mix@sub,owner/name@sub",
        "actor.model_name_or_path": "owner/model",
        "train.seed": 1,
    }


URL, AGENT_FILE = "reward.remote_url", "train.agent_func_path"
TRIES = "try:\n    from b import reward_func\nexcept ImportError:\n    def reward_func(a): ..."


@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        *[(URL, f"{code}\n", None) for code in ("def reward_func(a): ...", "from b import c as reward_func", TRIES)],
        (URL, None, "cannot be read (No such file or directory; looked in"),
        (URL, "def reward_func(:\n", "is not valid Python (line 1: invalid syntax)."),
        (URL, "def reward_fn(queries, prompts, labels): ...\n", "must define a non-async function `reward_func`"),
        (URL, "async def reward_func(queries, prompts, labels): ...\n", "must define a non-async function `reward_f"),
        (AGENT_FILE, None, "cannot be read (No such file or directory; looked in"),
        (AGENT_FILE, "import openrlhf\n", "must define a class `AgentExecutor`, which OpenRLHF calls. See docs/recip"),
    ],
)
def test_code_files_that_could_not_be_called(
    tmp_path: Path, key: str, content: str | None, message: str | None
) -> None:
    file, server = tmp_path / "mine.py", {URL: "http://host:5000/score"}
    if content is not None:
        file.write_text(content)
    with nullcontext() if message is None else pytest.raises(ConfigError) as raised:
        checks.require_code_files(RunConfig(MedsSettings(run_dir="x"), {**server, key: str(file)}))
    assert message is None or str(raised.value).startswith(f"{key}={file}: {message}")


# ── the policy ──

HAS = "this qwen2 model has q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head. Leave it out"


def test_unrecordable_architecture_is_refused_without_weights() -> None:
    args = arguments(**{"actor.model_name_or_path": "some/model"})
    checks.require_recordable(args, LlamaConfig(hidden_size=8192, num_hidden_layers=80))  # a 70B one, in no time
    with pytest.raises(ConfigError, match=r"actor.model_name_or_path=some/model: T5Config "):
        checks.require_recordable(args, T5Config())
    projecting = OPTConfig(hidden_size=32, word_embed_proj_dim=16, ffn_dim=8, num_attention_heads=2)
    with pytest.raises(
        ConfigError, match="OPTConfig projects its 32 hidden values to 16, for which layers have no log"
    ):
        checks.require_recordable(args, projecting)
    with pytest.raises(ConfigError, match="what it calls its decoder is a Linear"):
        checks.require_recordable(args, ModernBertDecoderConfig(num_hidden_layers=2))


def test_a_resume_with_other_adapters_or_another_stage(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    saved = RunConfig(MedsSettings(run_dir="x"), {"ds.lora.rank": 8, "ds.lora.target_modules": ["q_proj"]})
    paths.config.write_text(saved.as_yaml())
    checkpoint = Checkpoint("global_step4", 4)
    checks.require_same_parts(saved, paths, checkpoint, "fp32")
    others = (("ds.lora.rank", 4), ("ds.lora.alpha", 32), ("ds.lora.target_modules", ["v_proj"]), ("ds.zero_stage", 3))
    for key, value in others:
        changed = RunConfig(saved.meds, {**saved.openrlhf, key: value})
        with pytest.raises(ConfigError, match=rf"{key}=.*: the checkpoint was saved with .* Resume with that"):
            checks.require_same_parts(changed, paths, checkpoint, "fp32")
    folder = paths.policy_checkpoints / "global_step4"
    folder.mkdir(parents=True)
    for prefix, saved_in, other in (("", "fp32", "bf16"), ("bf16_", "bf16", "fp32")):
        part = folder / f"{prefix}zero_pp_rank_0_mp_rank_00_optim_states.pt"
        part.touch()
        checks.require_same_parts(saved, paths, checkpoint, saved_in)
        with pytest.raises(ConfigError, match=f"ds.param_dtype={other}: the checkpoint was saved with '{saved_in}'"):
            checks.require_same_parts(saved, paths, checkpoint, other)
        part.unlink()


@pytest.mark.parametrize(
    ("targets", "tied", "message"),
    [
        (["q_proj", "self_attn.k_proj", "down_proj", "lm_head"], False, None),
        (["q_proj"], True, None),
        (None, True, None),  # OpenRLHF's default: all linear layers but the unembedding
        (["q_proj", "query"], False, f"query: names no linear layer; {HAS}"),
        (["_proj"], False, f"_proj: names no linear layer; {HAS}"),
        (["all-linear"], False, f"all-linear: names no linear layer; {HAS}"),
        ([], False, f"[]: names no linear layer; {HAS}"),
        (["embed_tokens"], False, f"embed_tokens: names no linear layer; {HAS}"),
        (["lm_head"], True, "lm_head: has the weight of the embeddings, which engines cannot have with and"),
    ],
)
def test_targets_that_the_policy_lacks_or_that_cannot_be_merged(
    targets: list[str] | None, tied: bool, message: str | None
) -> None:
    policy = Qwen2Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    args = arguments(**{"ds.lora.rank": 8, "ds.lora.target_modules": targets})
    with nullcontext() if message is None else pytest.raises(ConfigError) as raised:
        checks.require_lora_targets(args, policy)
    assert message is None or str(raised.value).startswith(f"ds.lora.target_modules={message}")
    without_linear = GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    with pytest.raises(ConfigError, match="=all-linear: this gpt2 model has Conv1D layers"):
        checks.require_lora_targets(arguments(**{"ds.lora.rank": 8}), without_linear)
