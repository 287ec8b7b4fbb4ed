"""What the driver hands to the cluster, and the token with which it is entered."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.runtime import ray_connection
from meds_openrlhf.runtime.ray_token import MODE, TOKEN, TOKEN_PATH, main, write_token
from tests.conftest import RayCluster

# Starts a cluster, says where it is and how to enter, and ends it when its input closes.
LOCAL = """
import os, sys
from meds_openrlhf.runtime.ray_connection import ray_connection
with ray_connection(on_cpu=True, verbose=False):
    import ray
    print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"])
    sys.stdout.flush()
    sys.stdin.read()
print([name for name in os.environ if name.startswith("RAY_AUTH")])
"""
NODES = "from ray._raylet import GcsClient; print(len(GcsClient(address={!r}).get_all_node_info(timeout=10)))"


def test_workers_get_openrlhfs_defaults_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"):
        monkeypatch.delenv(name, raising=False)
    job = {"runtime_env": {"env_vars": {"TOKENIZERS_PARALLELISM": "false"}}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert ray_connection.worker_environment(ray_connection._defaults()) == {
        "NCCL_DEBUG": "INFO",
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    }


def without_tokens(**variables: str) -> dict[str, str]:
    """This process's environment as on a machine that knows no cluster and no token."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("RAY_")}, **variables}


def nodes_of(address: str, **variables: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", NODES.format(address)]
    asked = subprocess.run(command, env=without_tokens(**variables), capture_output=True, text=True, check=False)
    return asked.stdout.strip() or asked.stderr.strip().splitlines()[-1]


def test_a_cluster_that_starts_here_lets_nobody_in_without_its_token() -> None:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = without_tokens(HOME="/nonexistent")
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", LOCAL], env=environment, **streams) as local:
        address, mode, path = local.stdout.readline().split()
        assert (mode, stat.S_IMODE(os.stat(path).st_mode)) == ("token", 0o600)
        for variables in ({}, {MODE: "token", TOKEN: "0" * 64}):
            assert "Authentication token is missing or incorrect" in nodes_of(address, **variables)
        assert nodes_of(address, **{MODE: "token", TOKEN_PATH: path}) == "1"
        assert local.communicate("")[0] == "[]\n"
    assert not Path(path).exists()


def test_an_open_cluster_is_joined_as_it_is_and_named(ray_head: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_head.address)
    lines: list[str] = []
    with ray_connection.ray_connection(on_cpu=False, verbose=False, say=lines.append):
        assert MODE not in os.environ
    assert lines == ["warning: this Ray cluster asks for no token, so anyone who reaches its ports can run code in it"]


def test_a_token_that_is_missing_is_an_error_with_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"If it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"):
        ray_connection.ray_connection(on_cpu=False, verbose=False).__enter__()


def test_slow_local_cluster_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = [
        Exception("The current node timed out during startup."),
        RuntimeError("Timed out waiting for file x"),
        None,
    ]
    monkeypatch.setattr(ray_connection.ray, "init", lambda **_: raised(outcomes.pop(0)))
    ray_connection._start_or_join({})
    assert not outcomes
    for message, left in (("no such address", 1), ("timed out during startup", 0)):  # another error; the third time
        outcomes = [Exception(message)] * (2 if left else 3)
        with pytest.raises(Exception, match=message):
            ray_connection._start_or_join({})
        assert len(outcomes) == left


def raised(error: Exception | None) -> None:
    if error is not None:
        raise error


def test_a_token_replaces_what_is_there_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "token").symlink_to(precious)
    before = os.umask(0)
    try:
        path = write_token(tmp_path / "token")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert len(path.read_text()) == 64
    assert write_token(path).read_text() != path.with_name("precious").read_text() == "mine"


def test_a_job_gets_its_own_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    (tmp_path / "c.yaml").write_text("meds: {run_dir: elsewhere}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--resume", "c.yaml", "--meds.run_dir", "runs/mine"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/runs/mine/.ray-token-77\n"
    assert (tmp_path / "runs/mine/.ray-token-77").is_file()
    assert main(["none.yaml"]) == 2
    assert capsys.readouterr().err.startswith("meds: CONFIG=none.yaml: is not a readable YAML file")
    assert main(["c.yaml", "--meds.run_dir", "c.yaml/run"]) == 2
    assert "meds.run_dir: cannot be written to" in capsys.readouterr().err
