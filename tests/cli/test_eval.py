"""`meds eval`, as it is typed: what is refused before anything starts."""

from pathlib import Path

import pytest
import ray
from transformers import Qwen2Config

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.cli.main import main
from meds_openrlhf.evaluation.samples import Sample, SampleStore


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "sums.jsonl").write_text('{"id": "1", "prompt": "2+2", "answer": "4"}\n')


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("runs/none --benchmarks=sums.jsonl", "MODEL=runs/none: "),
        ("./none --benchmarks=sums.jsonl", "MODEL=./none: "),
        *[(f"x --benchmarks={name}", f"--benchmarks={name}: ") for name in ("aime24", "none.jsonl", "sums.json")],
        *[
            (f"x --benchmarks=sums.jsonl {word}", f"{word}: ")
            for word in ("--n=0", "--engines=0", "--answer-pattern=(a")
        ],
    ],
)
def test_a_mistake_is_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["eval", *words.split(), "--allow-cpu"]) == 2
    printed = capsys.readouterr()
    *before, last = printed.err.splitlines(keepends=True)
    assert last.startswith(f"meds: {message}")
    assert before in ([], ["reading tokenizers and prompts: none\n"])
    assert printed.out == ""
    assert not ray.is_initialized()
    assert not Path("eval").exists()


def test_without_a_gpu_it_has_to_be_allowed_and_a_submitted_job_keeps_its_results(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meds_openrlhf.runtime.devices.has_cuda", lambda: False)
    assert main(["eval", "x", "--benchmarks=sums.jsonl"]) == 2
    no_gpu = "meds: --allow-cpu=False: this machine has no GPU. Set RAY_ADDRESS to a cluster, or add --allow-cpu.\n"
    assert capsys.readouterr().err == no_gpu
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert main(["eval", "x", "--benchmarks=sums.jsonl", "--allow-cpu"]) == 2
    refusal = capsys.readouterr().err
    assert refusal.startswith("meds: --out=eval: a submitted job runs in a copy of its folder that Ray deletes.")


def test_where_nothing_is_missing_the_report_is_written_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Qwen2Config(vocab_size=261, max_position_embeddings=64).save_pretrained("policy")
    build_char_tokenizer().save_pretrained("policy")
    command = ["eval", "policy", "--benchmarks=sums.jsonl", "--n=3", "--allow-cpu"]
    with SampleStore(Path("eval/policy/sums.jsonl")) as store:
        store.append([Sample("1", index, "4", 1, False, "4", True) for index in range(3)])
    assert main(command) == 0
    printed = capsys.readouterr()
    said = ["reading tokenizers and prompts: policy", "all 3 samples are there already", "report: eval/report.md"]
    assert printed.err.splitlines() == said
    assert printed.out == Path("eval/table.md").read_text().split("\n### ")[0]
    origin = Path("eval/report.md").read_text().split("### Models and sampling")[1]
    assert "n = 3 samples of every problem. Benchmarks: sums (1 problem)." in origin
    assert str(Path("policy").absolute()) in origin
    assert not ray.is_initialized()
