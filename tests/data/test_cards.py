"""A data set's folder names files in it, and none outside."""

import json
from pathlib import Path

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.cards import require_own_files

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
