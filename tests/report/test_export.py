"""The prompts of a theme as a data set."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.request import read_problems
from meds_openrlhf.report import Limits, write_report
from tests.report.stored_runs import RUN, write_config, write_run
from tests.report.test_themes import SUMS, kinds_of


def test_export_writes_a_themes_prompts_as_in_the_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [[*kinds_of(2, 3), *kinds_of(4, 7)[:2]]], truth="6")
    known = tmp_path / "train.jsonl"  # of the first run, with one of its prompts
    known.write_text('{"question": "4*7", "id": "products-7"}\nno JSON\n["4*7"]\n')
    of_data = {"data.prompt_dataset": str(known), "data.input_key": "question"}
    write_config(run, **{"data.input_template": "What is {}?", **of_data})
    other = write_run(tmp_path / "other", [[*kinds_of(2, 3), *kinds_of(5, 9)]], truth="6")
    runs, out = [run.root, other.root], tmp_path / "theme.jsonl"
    assert main(["report", *map(str, runs), "--export", SUMS, str(out)]) == 0
    assert capsys.readouterr().out == f"{run.report}\n"
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    texts = ["2*3", "4*7", "What is 5*9?"]
    assert [(line["prompt"], line["answer"]) for line in lines] == [(text, "6") for text in texts]
    assert [line["id"] for line in lines] == ["2*3", "products-7", "5*9"]
    assert [problem.prompt for problem in read_problems(out)] == texts  # `meds eval` reads it
    write_report(runs, run.report, Limits(prompts=2), export=("2", out))  # the themes are those of the page
    assert [json.loads(line)["prompt"] for line in out.read_text().splitlines()] == ["2*3"]


def test_other_trainers_read_their_own_form(tmp_path: Path) -> None:
    from datasets import load_dataset

    run, out = write_run(tmp_path / "run", [[*kinds_of(2, 3), *kinds_of(4, 7)]], truth="6"), tmp_path / "set"
    whole = [{"role": "user", "content": "What is 2*3?"}]
    assert main(["report", str(run.root), "--export", "1", str(out), "--export-for", "trl"]) == 0
    read = load_dataset("json", data_files=str(out), split="train", cache_dir=str(tmp_path / "cache"))
    assert read[0]["prompt"] == whole
    assert read[0]["answer"] == "6"
    assert main(["report", str(run.root), "--export", "1", str(out), "--export-for", "verl"]) == 0
    first, *_ = pq.read_table(out).to_pylist()
    key = first["extra_info"].pop("id")
    assert key in read["id"]
    assert first == {
        "data_source": "lighteval/MATH", "prompt": whole, "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "6"}, "extra_info": {"index": 0},
    }  # fmt: skip


def test_a_file_is_named_as_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [kinds_of(2, 3)], truth="6").root
    for options, message in (
        (["--export", "1", "a.jsonl", "--export-for", "verl"], "--export=a.jsonl: for verl are Parquet. Name"),
        (["--export", "1", "a.parquet", "--export-for", "trl"], "--export=a.parquet: for trl are lines of JSON. Name"),
        (["--export-for", "trl"], "--export-for=trl: applies only with --export. Add it."),
    ):
        for command in ("report", "whatif"):
            assert main([command, str(run), *options]) == 2
            assert message in capsys.readouterr().err
    assert main(["report", str(run), "--export", "1", str(tmp_path / "a.jsonl")]) == 0
    assert f"{tmp_path / 'a.jsonl'}: 1 prompt\n" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["suspects", "unsolved"])
def test_prompts_of_the_other_lists_are_written_too(what: str, tmp_path: Path) -> None:
    run, data = write_run(tmp_path / "run", [[*kinds_of(2, 3), *kinds_of(4, 7)]], truth="6"), tmp_path / "found.json"
    write_report([run.root], run.report, export=(what, tmp_path / "set"), data=data)
    listed = {found["key"] for found in json.loads(data.read_text())[what]}
    assert {json.loads(line)["id"] for line in (tmp_path / "set").read_text().splitlines()} == listed


def test_what_cannot_be_exported_is_refused_and_nothing_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [[*kinds_of(2, 3), *kinds_of(4, 7)]])
    silent = write_run(tmp_path / "silent", [[one for one in RUN[0] if one.mode is None]])
    known = r"Name one of: 1 \(adds instead of multiplying: given \+ given = wrong\), 2 \(“guess”\)\."
    for folder, theme, problem in (
        (run, "other", f"--export=other: is not a theme of the report. {known}"),
        (run, "3", "--export=3: is not"),
        (run, "1", "has no right answers"),
        (run, "²", "--export=²: is not"),
        (silent, "1", "There are none: no log has a text"),
    ):
        with pytest.raises(ConfigError, match=problem):
            write_report([folder.root], folder.report, export=(theme, tmp_path / "x"))
    with pytest.raises(ConfigError, match=r"--export=.*: is a folder"):
        write_report([run.root], run.report, export=("1", tmp_path))
    assert main(["report", str(run.root), "--export", "1", str(run.config / "x")]) == 2  # in a folder that is a file
    assert not run.report.exists()
