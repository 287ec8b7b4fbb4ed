"""What a machine without an index gets."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "ray_jobs/validate/pack_wheels.sh"


def make_wheel(folder: Path, name: str, tag: str) -> None:
    """Write a wheel with nothing in it but its description."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_what_is_not_there_is_packed_in_parts(tmp_path: Path) -> None:
    index, parts = tmp_path / "index", tmp_path / "parts"
    index.mkdir()
    for name in ("any_python", "there_already"):
        make_wheel(index, name, "py3-none-any")
    this = f"cp{sys.version_info.major}{sys.version_info.minor}"
    make_wheel(index, "other_python", f"{this}-{this}-linux_x86_64")
    for python in ("cp310", "cp312"):
        make_wheel(index, "compiled", f"{python}-{python}-manylinux_2_28_x86_64")
    pins = ["any-python==1.0", "compiled[extra]==1.0 ; python_version > '3'", "there.already==1.0", "nowhere==1.0"]
    pins.append("other-python==1.0")
    (tmp_path / "a.lock").write_text("# a comment\n" + "\n".join(pins) + "\n")
    (tmp_path / "have.txt").write_text("There_Already==0.1\n")
    environment = {"LOCK": f"{tmp_path}/a.lock", "WHEELS": str(tmp_path), "PIP": f"{sys.executable} -m pip"}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": "/dev/null"}
    other = "3.12"  # not this one
    command = ["bash", SCRIPT, parts, other, tmp_path / "have.txt"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    missing = ["nowhere==1.0", f"other_python-1.0-{this}-{this}-linux_x86_64.whl", "flash-attn"]
    assert (parts / "missing.txt").read_text().split() == missing
    assert done.stdout == f"2 wheels in 1 parts; not packed: {','.join(missing)}\n"
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=parts, check=True)
    with tarfile.open(parts / "wheels.tar.000") as packed:
        assert {member.name for member in packed if member.isfile()} == {
            "wheels/any_python-1.0-py3-none-any.whl",
            "wheels/compiled-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        }
    done = subprocess.run(["bash", SCRIPT, tmp_path, "3.12", tmp_path / "none"], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{tmp_path}/none cannot be read" in done.stderr
