"""What the demo asks for on machines with and without a GPU."""

from types import SimpleNamespace

import pytest

from meds_openrlhf.cli import demo
from meds_openrlhf.cli.main import main
from meds_openrlhf.config import RunConfig
from meds_openrlhf.training import cpu


@pytest.mark.parametrize(("has_gpu", "mode"), [(True, "auto"), (False, "flags")])
def test_one_gpu_is_enough(has_gpu: bool, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(config: RunConfig, **_options: bool) -> None:
        assert config.meds.placement.mode == mode
        raise Started

    monkeypatch.setattr(cpu, "has_cuda", lambda: has_gpu)
    monkeypatch.setattr(demo, "make_arithmetic", lambda _folder: SimpleNamespace())
    monkeypatch.setattr(demo, "train", start)
    with pytest.raises(Started):
        main(["demo"])
