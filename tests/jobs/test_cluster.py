"""Whatever is wrong with an address is one line."""

import os
import socket

import pytest
import ray

from meds_openrlhf.config import ConfigError
from meds_openrlhf.jobs import cluster
from meds_openrlhf.jobs.cluster import connect
from tests.jobs.http_server import http_server, version


def refusal(address: str) -> str:
    with pytest.raises(ConfigError) as refused:
        connect(address)
    text = str(refused.value)
    assert "\n" not in text
    return text.removeprefix(f"--address: {address!r} ")


def test_addresses_that_lead_nowhere() -> None:
    assert refusal("http://127.0.0.1:1").startswith("does not answer; name the head's dashboard (port 8265)")
    assert refusal("ray://127.0.0.1:10001") == "is no dashboard's address; write it as http://head:8265"
    with http_server(404, "no such page") as address:
        assert refusal(address).startswith("answers, but is no Ray dashboard (Version check returned 404)")
    with http_server(200, "<html>a page</html>") as address:
        assert refusal(address).startswith("answers, but is no Ray dashboard (")


def test_a_head_that_takes_the_connection_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SECONDS", (1, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert refusal(f"http://127.0.0.1:{silent.getsockname()[1]}").startswith("does not answer")


def test_a_head_of_another_version() -> None:
    with http_server(200, version("2.9.0")) as address:
        assert refusal(address).startswith(f"runs Ray 2.9.0 and this machine {ray.__version__}; install")


def test_the_address_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    with http_server(200, version(ray.__version__)) as address:
        assert connect(address.removeprefix("http://")).get_address() == address
    assert os.environ["RAY_ADDRESS"] == "http://127.0.0.1:1"
