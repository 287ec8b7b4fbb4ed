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
    2), and with ``ckpt.save_hf`` 2 more; the model that is saved in the end has 2.
    """
    flags = config.openrlhf
    name = str(flags.get("actor.model_name_or_path"))
    shape = find_shape(name).shape
    if shape is None:
        return Finding("cluster", "disk", f"{name}: sizes unknown, so the size of its checkpoints is too")
    kept = int(flags.get("ckpt.max_num") or KEPT)
    of_a_parameter = (2 if flags.get("ds.lora.rank") else 14) + (2 if flags.get("ckpt.save_hf") else 0)
    needed = (0 if flags.get("ckpt.disable_ds") else kept * of_a_parameter * shape.parameters) + 2 * shape.parameters
    free = shutil.disk_usage(folder).free
    found = f"{kept} checkpoints of {name} and the trained model take {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB free"
    return Finding("cluster", "disk", found, "make room, or lower ckpt.max_num" if free < needed else "")
