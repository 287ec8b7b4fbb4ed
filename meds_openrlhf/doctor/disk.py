"""Whether the disk has room for what a recipe saves."""

from __future__ import annotations

import shutil
from pathlib import Path

from meds_openrlhf.config import RunConfig
from meds_openrlhf.doctor.finding import Finding
from meds_openrlhf.placement.model_shape import find_shape

KEPT = 3  # OpenRLHF's default of ckpt.max_num


def room_for_checkpoints(folder: Path, config: RunConfig) -> Finding:
    """Compare the free disk of ``folder`` with the recipe's checkpoints and its trained model.

    A checkpoint has the weights in bf16, and in fp32 with Adam's two moments: 2 + 12 bytes of a parameter (with LoRA
    2), and those of a critic, taken to be as large. Evaluations keep the best checkpoint beside the others. The model
    that is saved in the end has 2; so has each of ``ckpt.save_hf``, which are never removed.
    """
    flags = config.openrlhf
    name = str(flags.get("actor.model_name_or_path"))
    shape = find_shape(name).shape
    if shape is None:
        return Finding("cluster", "disk", f"{name}: sizes unknown, so the size of its checkpoints is too")
    kept = int(flags.get("ckpt.max_num") or KEPT) + bool(flags.get("eval.dataset"))
    roles = 2 if flags.get("algo.advantage.estimator") == "gae" else 1
    saved = 0 if flags.get("ckpt.disable_ds") else kept * roles * (2 if flags.get("ds.lora.rank") else 14)
    needed = (saved + 2) * shape.parameters
    free = shutil.disk_usage(folder).free
    found = f"{kept} checkpoints of {name} and the trained model take {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB free"
    if flags.get("ckpt.save_hf"):
        found += f"; every save adds {2 * shape.parameters / 1e9:.0f} GB with ckpt.save_hf"
    return Finding("cluster", "disk", found, "make room, or lower ckpt.max_num" if free < needed else "")
