"""Reading files of the shapes that the sets have, and folders that name their own files and none outside."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.data.catalog import CATALOG, DataSet
from meds_openrlhf.data.questions import DAPO_CLOSING, DAPO_OPENING
from meds_openrlhf.data.sources import Row, Source, read_rows, require_own_files

OWN = DataSet(name="own", kind="training")
CHAT = [{"role": "system", "content": "Think."}, {"role": "user", "content": f"{DAPO_OPENING}q{DAPO_CLOSING}"}]


def write_parquet(path: Path, records: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(records), path)
    return path


def write_lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def rows_of(path: Path, dataset: DataSet = OWN) -> list[Row]:
    return list(read_rows(Source(dataset, path)))


@pytest.mark.parametrize(
    ("record", "row"),
    [
        ({"problem": "b", "level": "Level ?", "solution": "no box"}, Row("b", None, "?")),
        ({"problem": "q", "answer": "033", "solution": "\\boxed{5}", "url": "u"}, Row("q", "033", "")),
        ({"question": "q", "answer": 27.0}, Row("q", "27", "")),
        ({"problem": "q", "answer": "x", "level": 4}, Row("q", "x", "4")),
        ({"question": "q", "final_answer": ["$2$"], "difficulty": "Competition"}, Row("q", "2", "")),
        ({"prompt": "<|im_start|>", "question": " q\n", "answer": "1"}, Row("q", "1", "")),
        ({"prompt": "q", "ground_truth": 7}, Row("q", "7", "")),
        ({"prompt": CHAT, "answer": 1}, Row("q", "1", "")),
    ],
)
def test_the_shapes_of_benchmarks_and_of_ones_own_files(tmp_path: Path, record: dict[str, Any], row: Row) -> None:
    assert rows_of(write_lines(tmp_path / "set.jsonl", [record, record])) == [row, row]
    assert rows_of(write_parquet(tmp_path / "set.parquet", [record])) == [row]
    (tmp_path / "set.json").write_text(json.dumps([record], indent=2))
    assert rows_of(tmp_path / "set.json") == [row]


def test_lines_may_mix_types_and_keep_numbers_as_written(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "set.jsonl", [{"question": "a", "answer": 1}, {"question": "b", "answer": "x"}, {}])
    with path.open("a") as file:
        file.write('{"question": "a", "answer": 0.10}\n{"question": "b", "answer": 1e3}\n')
    answers = [("a", "1"), ("b", "x"), (None, None), ("a", "0.10"), ("b", "1e3")]
    assert rows_of(path) == [Row(question, answer, "") for question, answer in answers]
    path = write_lines(tmp_path / "math.jsonl", [{"problem": "q", "answer": "1"}])
    assert rows_of(path, CATALOG["math-3to5"]) == [Row("q", "1", "")]  # other files of a set have the usual columns
    path = write_lines(tmp_path / "math.jsonl", [{"problem": "q", "solution": "\\boxed{1}"}])
    with pytest.raises(ConfigError, match=r"has no column level, by which math is filtered\. It has problem, solution"):
        rows_of(path, CATALOG["math"])


def test_a_folder_copied_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "SimpleRL-Zoo-Data"
    for name, question in (("simplelr_qwen_level3to5", "this"), ("simplelr_abel_level1to4", "other")):
        (folder / name).mkdir(parents=True)
        record = {
            "prompt": [{"role": "user", "content": f"Reason step by step. {question}"}],
            "answer": "a whole solution",
            "reward_model": {"ground_truth": "$3$", "style": "rule"},
            "extra_info": {"question": question, "level": 1},
        }
        write_parquet(folder / name / "train.parquet", [record])
    assert rows_of(folder, CATALOG["math-3to5"]) == [Row("this", "3", "")]
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path / "none")
    for empty in (tmp_path / "none", Path()):
        with pytest.raises(ConfigError, match=r"doesn't contain any data files\)\. Give a Parquet or JSON file, or a "):
            rows_of(empty)


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    line = (
        r"aime24=HuggingFaceH4/aime_2024: cannot be loaded \(the hub cannot be reached\). Give a file: --from aime24="
    )
    for offline in (True, False):  # as the user says, and as it is found
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", offline)
        with pytest.raises(ConfigError, match=line):
            list(read_rows(Source(CATALOG["aime24"])))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ConfigError, match=r"^aime24=HuggingFaceH4/aime_2024: needs the package datasets; in a clone of the proj"
    ):
        list(read_rows(Source(CATALOG["aime24"])))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"text": "q", "answer": "1"}], "has no column for the question .*\. It has text, answer"),
        ([{"question": "q", "label": "1"}], "has no column for the answer .*\. It has question, label"),
        ([{"question": "q", "answer": True}], "record 1 cannot be read: answer: True is not a text, .*. Correct or"),
        ([{"question": 5, "answer": "1"}], "record 1 cannot be read: question: 5 is neither a text nor a chat"),
        ([{"prompt": [{"role": "system", "content": "x"}], "answer": 1}], "a chat with 0 user messages"),
        ([{"question": "q", "answer": "1"}, ["q", "1"]], r"record 2 is \['q', '1'\]\. Give one JSON object per line"),
        (
            [{"question": "\ud800", "answer": "1"}],
            r"record 1 cannot be read: 'utf-8' codec can't encode character '\\ud800'",
        ),
        ([], "is empty"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path: Path, records: list[Any], message: str) -> None:
    path = write_lines(tmp_path / "set.jsonl", records)
    with pytest.raises(ConfigError, match=message) as caught:
        rows_of(path)
    assert str(caught.value).startswith(f"--from={path}: ")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("set.jsonl", '{"question": "a", "answer": 1}\n\n{"question": }\n', "is not JSON in line 3, column 14 "),
        ("set.json", '[\n{"question": "a", "answer": 1},\n{"question": }]\n', "is not JSON in line 3, column 14 "),
        ("set.jsonl", '{"question": "a", "answer": 1}\n{"question": "b",\n', "is not JSON in line 2, column "),
        ("set.parquet", '{"question": "a", "answ', "cannot be read: "),
        ("set.csv", "question,answer\n", r"must end in \.parquet, \.jsonl or \.json"),
        ("none.jsonl", None, r"does not exist\. Give a Parquet or JSON file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=f"{name}: {message}"):
        rows_of(tmp_path / name)


CARD = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: {}\n---\n# A set\n"


@pytest.mark.parametrize("path", ["train.jsonl", "data/*.parquet", "'**/*.jsonl'", "[a.jsonl, b.jsonl]", "a..b.jsonl"])
def test_files_in_the_folder_may_be_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "README.md").write_text(CARD.format(path))
    require_own_files(tmp_path, "--from")


OUTSIDE = ["../private.jsonl", "/home/me/private.jsonl", "http://127.0.0.1:1/x.jsonl", "hf://datasets/x/y", "a/../../b"]
OUTSIDE += ["[a.jsonl, ../b.jsonl]", "'zip://x.jsonl::/etc/x.zip'"]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
def test_others_are_refused(tmp_path: Path, path: str, card: str) -> None:
    text = CARD.format(path)
    (tmp_path / card).write_text(text if card == "README.md" else text.split("---")[1])
    with pytest.raises(ConfigError, match=f"^--from=.*: has a {card} that names .*, which is not in the folder"):
        require_own_files(tmp_path, "--from")


@pytest.mark.parametrize(
    "text",
    [
        "---\nlicense: mit\n---x: 1\nconfigs:\n- data_files: /etc/x.json\n---\n",
        "---\rconfigs:\r- data_files: /etc/x.json\r---\n",
        "---\nconfigs:\n- data_files: file:/etc/x.json\n---\n",
    ],
)
def test_a_head_is_what_the_hubs_client_takes_for_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text, newline="")
    with pytest.raises(ConfigError, match=r"README\.md that (names|cannot be read)"):
        require_own_files(tmp_path, "--from")


@pytest.mark.parametrize("name", ["../../private.arrow", "/home/me/private.arrow"])
@pytest.mark.parametrize("place", ["state.json", "train/state.json", "dataset_dict.json"])
def test_the_state_of_a_saved_set_names_its_own_files_too(tmp_path: Path, name: str, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    own = {"splits": ["train"]} if place == "dataset_dict.json" else {"_data_files": [{"filename": "data.arrow"}]}
    path.write_text(json.dumps(own))
    require_own_files(tmp_path, "--from")
    path.write_text(json.dumps(own).replace("data.arrow", name).replace('["train"]', f'["{name}"]'))
    with pytest.raises(ConfigError, match="is not in the folder"):
        require_own_files(tmp_path, "--from")


@pytest.mark.parametrize("text", ["no head", "", "---\n---\n", "---\nlicense: mit\n---\ndata_files: ../x\n"])
def test_a_card_may_say_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    require_own_files(tmp_path, "--from")


def test_a_card_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\na: &a [*a]\n---\n")
    with pytest.raises(ConfigError, match=r"has a README\.md that cannot be read"):
        require_own_files(tmp_path, "--from")
