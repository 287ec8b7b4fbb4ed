"""Files of slime: plain values and numbers of NumPy, and whatever else is in them, which never runs."""

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.reading import Dump


def save(path: Path, content: object, protocol: int = 2) -> Path:
    data = content if isinstance(content, bytes) else pickle.dumps(content, protocol)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", data)
        archive.writestr(f"{path.stem}/version", "3\n")
    return path


class Strange:
    """A class of whoever wrote the file."""

    def __init__(self) -> None:
        self.inside = [1]


class Running:
    """What would run a command where a pickle is trusted."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch ran",)


def sample(**more: object) -> dict[str, object]:
    return {"prompt": "2+2", "response": "\\boxed{5}", "reward": 0.0, "label": "4", "status": "completed", **more}


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_numbers_and_texts_are_read_and_nothing_else(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"metadata": OrderedDict(a=[Strange()]), "images": np.zeros((2, 2)), "other": {Running(), 1}}
    rewards = [np.float64(0.25), np.float32(1.0), np.int64(0), np.bool_(True), True, np.dtype(">f4").type(0.5)]
    samples = [sample(reward=reward, **more) for reward in rewards]
    monkeypatch.chdir(tmp_path)
    dump = Dump([save(tmp_path / "3.pt", {"rollout_id": 3, "samples": samples}, protocol)])
    [(step, rollouts)] = list(dump)
    assert (step, dump.format_name) == (3, "slime")
    assert [rollout.reward for rollout in rollouts] == [0.25, 1.0, 0.0, 1.0, 1.0, 0.5]
    assert not (tmp_path / "ran").exists()


def test_tensors_need_no_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "0.pt"
    torch.save({"rollout_id": 0, "samples": [sample(log_probs=torch.ones(3)), sample(reward=torch.tensor(1.0))]}, path)
    dump = Dump([path])
    [(step, rollouts)] = list(dump)
    assert (step, len(rollouts)) == (1, 1)
    assert dump.counts.left_out == {"whose reward is not a finite number": 1}


def odd_value(name: str) -> object:
    """Values that are small in a file, and without end as text."""
    value: list = []
    if name == "itself":
        value.append(value)
    for _ in range(40 * (name == "laughs")):
        value = [value or "lol"] * 10
    return {"number": 10**5000, "strange": Strange()}.get(name, value)


@pytest.mark.parametrize("name", ["laughs", "itself", "number", "strange"])
@pytest.mark.parametrize("column", ["label", "prompt", "response", "reward", "rollout_id"])
def test_no_value_takes_more_than_its_file(tmp_path: Path, column: str, name: str) -> None:
    good = sample(rollout_id=1)
    path = save(tmp_path / "1.pt", {"rollout_id": 1, "samples": [good, {**good, column: odd_value(name)}]}, 4)
    found = [rollout for _, rollouts in Dump([path]) for rollout in rollouts]
    assert len(found) == (2 if column in ("label", "rollout_id") else 1)  # the file's id counts
    assert all(len(rollout.truth or "") < 50_000 for rollout in found)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]r\xff\xff\xff\xff.",  # a memo of four billion places
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",  # a byte array of a terabyte
        b"\x80\x02\x82\x01.",
        b"(i__main__\nA\n.",
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00truet\x85R.",
        b"\x80\x02.",
        b"",
        b"N.",
    ],
)  # fmt: skip
def test_a_hostile_pickle_ends_in_an_error_of_ours(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"1\.pt: (cannot be read \(|contains no rollouts)"):
        list(Dump([save(tmp_path / "1.pt", content)]))


@pytest.mark.parametrize("column", ["label", "prompt"])
def test_a_text_that_samples_share_counts_for_each(tmp_path: Path, column: str) -> None:
    long = "x" * 2_000_000
    value: object = [{"role": "user", "content": [{"type": "text", "text": long}]}] if column == "prompt" else long
    path = save(tmp_path / "1.pt", {"rollout_id": 1, "samples": [sample(**{column: value})] * 400}, 4)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        content = archive.read("1/data.pkl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1/data.pkl", content)
    assert path.stat().st_size < 10_000
    with pytest.raises(ConfigError, match=r"cannot be read .*unpacked, it has"):
        list(Dump([path]))
