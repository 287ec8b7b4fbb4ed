"""Rollouts on disk between two runs."""

import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from PIL import Image

from meds_openrlhf.training.leftovers import load_leftovers, save_leftovers


def rollout() -> Experience:
    return Experience(
        sequences=torch.tensor([[5, 6, 7]]),
        action_mask=torch.tensor([[False, True]]),
        rollout_log_probs=None,
        prompts=["1 + 1 ="],
        labels=["2"],
        images=[None],
        mm_train_inputs=[{"pixel_values": torch.ones(2, 2)}],
        rewards=torch.tensor([1.0]),
        info={"reward": torch.tensor([1.0]), "note": [0.5]},
    )


def test_they_come_back_as_they_were(tmp_path: Path) -> None:
    save_leftovers(tmp_path / "global_step3.pt", [rollout(), rollout()])
    back = load_leftovers(tmp_path / "global_step3.pt")
    assert len(back) == 2
    expected = rollout()
    for one in back:
        assert torch.equal(one.sequences, expected.sequences)
        assert one.action_mask.dtype == torch.bool
        assert (one.prompts, one.labels, one.images) == (["1 + 1 ="], ["2"], [None])
        assert torch.equal(one.mm_train_inputs[0]["pixel_values"], torch.ones(2, 2))
        assert one.rollout_log_probs is None
        assert one.info["note"] == [0.5]


def test_images_are_kept_as_files_are(tmp_path: Path) -> None:
    seeing = rollout()
    seeing.images = [[Image.new("RGB", (2, 1), (255, 0, 0)), "https://example.org/cat.png"]]
    save_leftovers(tmp_path / "x.pt", [seeing])
    ((image, address),) = load_leftovers(tmp_path / "x.pt")[0].images
    assert Image.open(io.BytesIO(image)).getpixel((1, 0)) == (255, 0, 0)
    assert address == "https://example.org/cat.png"


def test_what_could_not_be_read_back_is_refused_at_once(tmp_path: Path) -> None:
    odd = rollout()
    odd.info["when"] = object()
    with pytest.raises(TypeError, match="a rollout holds a object"):
        save_leftovers(tmp_path / "x.pt", [odd])
    assert list(tmp_path.iterdir()) == []


def test_no_code_in_the_file_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save([Evil()], tmp_path / "x.pt")
    with pytest.raises(pickle.UnpicklingError):
        load_leftovers(tmp_path / "x.pt")
    assert not (tmp_path / "owned").exists()
