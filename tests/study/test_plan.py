"""The commands of a run: what a user would type, with all that the study decides."""

from pathlib import Path

from meds_openrlhf.config import load_config
from meds_openrlhf.study.plan import StudyRun, runs_of
from tests.study.studies import study


def run_named(folder: Path, name: str, **changes: object) -> StudyRun:
    return next(run for run in runs_of(study(folder, **changes)) if run.name == name)


def test_pairs_are_complete_as_early_as_possible(tmp_path: Path) -> None:
    names = [run.name for run in runs_of(study(tmp_path))]
    assert names[:5] == ["sums-dapo-1", "sums-meds-1", "gcd-dapo-1", "gcd-meds-1", "sums-dapo-2"]
    assert len(names) == len(set(names)) == 20


def test_training_resumes_and_has_all_settings(tmp_path: Path) -> None:
    run = run_named(tmp_path, "sums-meds-3")
    words = run.training()
    assert words[:5] == [
        "meds",
        "train",
        f"{tmp_path}/configs/dapo.yaml",
        "--variant",
        f"{tmp_path}/variants.yaml:harder",
    ]
    assert words[-1] == "--resume"
    config = load_config(words[2], words[3:-1])
    assert (config.meds.run_dir, config.meds.max_steps) == (f"{tmp_path}/runs/sums-meds-3", 6)
    assert (config.meds.penalty.alpha, config.meds.penalty.beta) == (0.0, 0.3)
    assert config.openrlhf == {
        "actor.model_name_or_path": "policy-3",
        "data.prompt_dataset": "train.jsonl",
        "actor.adam.lr": 1e-6,
        "train.seed": 3,
        "ckpt.save_steps": 2,
        "ckpt.max_num": 4,
    }


def test_methods_of_a_seed_have_the_same_policy_data_and_seed(tmp_path: Path) -> None:
    shared = ("actor.model_name_or_path", "data.prompt_dataset", "train.seed")
    dapo, meds = (run_named(tmp_path, f"sums-{method}-2").load().openrlhf for method in ("dapo", "meds"))
    assert [dapo[key] for key in shared] == [meds[key] for key in shared] == ["policy-2", "train.jsonl", 2]


def test_all_checkpoints_and_the_policy_before_training_are_evaluated(tmp_path: Path) -> None:
    run = run_named(tmp_path, "gcd-meds-1", evaluation={"every": 3, "n": 4, "max_tokens": 9})
    folder = f"{tmp_path}/runs"
    assert run.evaluation() == [
        *("meds", "eval", "start=policy", f"meds@3={folder}/gcd-meds-1@3", f"meds@6={folder}/gcd-meds-1@6"),
        *("--benchmarks", "gcd.jsonl", "--out", f"{folder}/evaluations/gcd-1", "--n", "4"),
        *("--temperature", "1.0", "--top-p", "1.0", "--seed", "0", "--max-tokens", "9", "--allow-cpu"),
    ]


def test_preparation_and_benchmarks_know_the_seed(tmp_path: Path) -> None:
    task = {"benchmarks": ["made-{seed}/eval.jsonl"], "prepare": ["meds data arithmetic --out 'made {seed}'"]}
    run = run_named(tmp_path, "a-dapo-4", tasks={"a": task})
    assert run.preparation() == [["meds", "data", "arithmetic", "--out", "made 4"]]
    assert run.benchmarks == ["made-4/eval.jsonl"]


def test_agreement_is_asked_for_where_mistakes_are_known(tmp_path: Path) -> None:
    words = run_named(tmp_path, "sums-dapo-1").agreement()
    assert words is not None
    assert words[:4] == ["python", "-m", "analysis.known_mistakes", f"{tmp_path}/runs/sums-dapo-1"]
    assert run_named(tmp_path, "gcd-dapo-1").agreement() is None


def test_a_digest_is_of_what_makes_the_result(tmp_path: Path) -> None:
    digest = run_named(tmp_path, "gcd-dapo-1").digest
    assert run_named(tmp_path, "gcd-dapo-1", seeds=[1]).digest == digest  # fewer seeds change no run
    assert run_named(tmp_path / "elsewhere", "gcd-dapo-1").digest == digest
    assert run_named(tmp_path, "gcd-dapo-2").digest != digest
    assert run_named(tmp_path, "gcd-dapo-1", settings={"actor.max_norm": 0.5}).digest != digest
    assert run_named(tmp_path, "gcd-dapo-1", evaluation={"every": 2, "n": 8}).digest != digest
    assert (
        run_named(tmp_path, "gcd-dapo-1", evaluation={"every": 2, "n": 4, "keep_checkpoints": False}).digest == digest
    )
