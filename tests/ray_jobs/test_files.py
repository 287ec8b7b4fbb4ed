"""The files in ray_jobs/ fit each other, this package and what reads them."""

import argparse
import re
import shlex
import zipfile
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import yaml
from ray._private import ray_constants
from ray._private.runtime_env.packaging import create_package

from meds_openrlhf import __version__
from meds_openrlhf.cli import train
from meds_openrlhf.config import load_config

REPOSITORY = Path(__file__).parents[2]
RAY_JOBS = REPOSITORY / "ray_jobs"
MANIFEST = yaml.safe_load((RAY_JOBS / "kuberay/rayjob.yaml").read_text())
CLUSTER = MANIFEST["spec"]["rayClusterSpec"]
CONTAINERFILE = (RAY_JOBS / "Containerfile").read_text()
MODEL = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")
HOME = "/opt/meds-openrlhf"  # of this package in the image


def pods() -> list[dict[str, Any]]:
    groups = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_runs_caches_and_keys_stay_out_of_the_jobs_copy(tmp_path: Path) -> None:
    kept = {".gitignore", "run.yaml", "code/a.py", "code/runs/kept.txt", "data/small.jsonl", "big/.rayignore"}
    kept |= {f"policy/{name}" for name in MODEL} | {"code/tokens.py", "code/secret_santa.py", "code/api_key.py"}
    left_out = """
        prod.env .envrc _netrc credentials.json .git-credentials .pypirc .npmrc .aws/credentials .aws/config
        .ssh/id_rsa .ssh/config id_dsa id_ecdsa server.pem x.p12 x.pfx x.jks secrets.yaml secrets.toml
        .streamlit/secrets.toml token .huggingface/token .cache/huggingface/token .config/wandb/settings kubeconfig
        .kube/config .docker/config.json service-account.json client_secret.json keys.txt api_key wandb_key .openai
        judge-cache/ab/cd.json code/hf_token.txt my-api-key.txt code/.hidden.py passwords.csv
        runs/old/config.yaml .venv/lib/x.py .git/config code/__pycache__/a.pyc wandb/z big/x.bin code/note.tmp
        model/global_step50/weights.pt .env keys.env code/.env.local tls/head.pem tls/head.key id_rsa
        ssh/id_ed25519.pub .netrc credentials code/credentials.json
    """
    for name in (*kept, *left_out.split()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text({".gitignore": "*.tmp\n", "big/.rayignore": "*.bin\n"}.get(name, "x"))
    environment = yaml.safe_load((RAY_JOBS / "runtime_env.yaml").read_text())
    given = environment["env_vars"]
    assert given.pop("RAY_JOB_STOP_WAIT_TIME_S") == "900"  # time for the checkpoint of a stopped job
    names = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    folders = ("vllm", "triton", "inductor")
    assert given == {name: f"/tmp/meds-${{USER}}/{folder}" for name, folder in zip(names, folders)}  # of each node
    script = (RAY_JOBS / "slurm.sh").read_text()
    assert all(f"{name}=${{{name}:-$cache/{folder}}}" in script for name, folder in zip(names, folders))
    assert yaml.safe_load(MANIFEST["spec"]["runtimeEnvYAML"])["env_vars"] == {
        **given,
        "RAY_JOB_STOP_WAIT_TIME_S": "900",
    }
    archive = tmp_path.with_suffix(".zip")
    excludes = environment["excludes"] + ray_constants.get_runtime_env_default_excludes()
    create_package(str(tmp_path), archive, include_gitignore=True, excludes=excludes)
    with zipfile.ZipFile(archive) as packed:
        assert {name for name in packed.namelist() if not name.endswith("/")} == kept


def test_the_entrypoint_is_a_command_of_ours() -> None:
    words = shlex.split(MANIFEST["spec"]["entrypoint"])
    parser = argparse.ArgumentParser()
    train.add_train(parser.add_subparsers())
    assert words[0] == "meds"
    known, overrides = parser.parse_known_args(words[1:])
    assert MANIFEST["spec"]["backoffLimit"] > 0
    assert known.resume  # every attempt takes the same words, the second one must go on
    config = load_config(REPOSITORY / Path(known.config).relative_to(HOME), overrides)
    mounts = {mount["mountPath"] for pod in pods() for mount in pod["containers"][0]["volumeMounts"]}
    assert Path(config.meds.run_dir).parts[:2] == ("/", "shared")
    assert config.openrlhf["data.prompt_dataset"].startswith("/shared/")
    assert "/shared" in mounts


def test_all_pods_run_our_image_with_the_pinned_ray_and_see_the_same() -> None:
    for pod in pods():
        container = pod["containers"][0]
        assert container["image"] == f"meds-openrlhf:{__version__}"
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert container["envFrom"] == [{"secretRef": {"name": "meds-keys", "optional": True}}]
    assert f"-t meds-openrlhf:{__version__} ." in CONTAINERFILE
    assert CLUSTER["rayVersion"] == version("ray")
    assert CLUSTER["authOptions"] == {"mode": "token"}  # since KubeRay 1.5.1
    assert "KubeRay 1.5.1 or later" in (REPOSITORY / "docs/cluster.md").read_text()
    head, workers = (pod["containers"][0]["resources"]["limits"] for pod in pods())
    assert "nvidia.com/gpu" in workers.keys() - head  # GPUs are on the workers alone
    claim = yaml.safe_load((RAY_JOBS / "kuberay/storage.yaml").read_text())
    assert pods()[0]["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_image_is_built_from_files_that_are_there_and_pinned_versions() -> None:
    pins = map(re.compile(r"([\w.-]+)(?:\[\w+\])?==([\d.]+)").match, requires("openrlhf"))
    pinned = dict(match.groups() for match in pins if match)
    assert re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE) == ["${VLLM_IMAGE}"] * 2
    assert f"\nARG VLLM_IMAGE=docker.io/vllm/vllm-openai:v{pinned['vllm']}\n" in CONTAINERFILE
    assert "-c requirements/gpu.lock '.[gpu,gym,dev]'" in CONTAINERFILE
    assert f"flash-attn=={pinned['flash-attn']}" in CONTAINERFILE
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert f"openrlhf[vllm,ring,liger]=={version('openrlhf')}" in project
    assert f"'ray[default]=={pinned['ray']}'" in (REPOSITORY / "docs/cluster.md").read_text()
    for copy in re.findall(r"^COPY (?!--from)(.*)", CONTAINERFILE, re.MULTILINE):
        *sources, _target = copy.split()
        assert sources
        assert all((REPOSITORY / source).exists() for source in sources)
    assert f"WORKDIR {HOME}\n" in CONTAINERFILE
    for name in ("pyproject.toml", "README.md"):  # what the build of the package itself reads
        assert re.search(rf"^COPY .*\b{name}\b", CONTAINERFILE, re.MULTILINE)
