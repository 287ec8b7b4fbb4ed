"""`meds eval`, as it is typed: what is refused before anything starts."""

import json
from pathlib import Path

import pytest
import ray
from transformers import Qwen2Config

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.evaluation.samples import Sample, SampleStore
from tests.cli.conftest import Meds


@pytest.fixture(autouse=True)
def _benchmark(meds: Meds) -> None:
    Path("sums.jsonl").write_text('{"id": "1", "prompt": "2+2", "answer": "4"}\n')


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *[(f"{model} --benchmarks=sums.jsonl", f"MODEL={model}: ") for model in ("runs/none", "./none")],
        *[(f"x --benchmarks={name}", f"--benchmarks={name}: ") for name in ("aime24", "none.jsonl", "sums.json")],
        ("x --benchmarks=sums.jsonl --n=0", "--n=0: "),
        ("x --benchmarks=sums.jsonl --answer-pattern=(a", "--answer-pattern=(a: "),
    ],
)
def test_a_mistake_is_one_line(words: str, message: str, meds: Meds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert meds.refusal("eval", *words.split(), "--allow-cpu").startswith(message)
    assert not ray.is_initialized()
    assert not Path("eval").exists()


def test_eval_on_cpus_must_be_allowed_and_a_job_keeps_results(meds: Meds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meds_openrlhf.runtime.devices.has_cuda", lambda: False)
    no_gpu = "--allow-cpu=False: this machine has no GPU. Set RAY_ADDRESS to a cluster, or add --allow-cpu."
    assert meds.refusal("eval", "x", "--benchmarks=sums.jsonl") == no_gpu
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    refusal = meds.refusal("eval", "x", "--benchmarks=sums.jsonl", "--allow-cpu")
    assert refusal.startswith("--out=eval: a submitted job runs in a copy of its folder that Ray deletes.")


def test_where_nothing_is_missing_the_report_is_written_at_once(meds: Meds) -> None:
    Qwen2Config(vocab_size=261, max_position_embeddings=64).save_pretrained("policy")
    build_char_tokenizer().save_pretrained("policy")
    with SampleStore(Path("eval/policy/sums.jsonl")) as store:
        store.append([Sample("1", index, "4", 1, False, "4", True) for index in range(3)])
    code, printed, trouble = meds("eval", "policy", "--benchmarks=sums.jsonl", "--n=3", "--allow-cpu")
    said = ["reading tokenizers and prompts: policy", "all 3 samples are there already", "report: eval/report.md"]
    assert (code, trouble.splitlines()) == (0, said)
    assert printed == Path("eval/table.md").read_text().split("\n### ")[0]
    written = meds.output("eval", "policy", "--benchmarks=sums.jsonl", "--n=3", "--allow-cpu", "--json")
    assert json.loads(written) == json.loads(Path("eval/results.json").read_text())
    origin = Path("eval/report.md").read_text().split("### Models and sampling")[1]
    assert "n = 3 samples of every problem. Benchmarks: sums (1 problem)." in origin
    assert str(Path("policy").absolute()) in origin
    assert not ray.is_initialized()
