"""Whether W&B answers, asked of real servers on this machine."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from meds_openrlhf.doctor.tracker import examine_wandb
from tests.ports import free_ports

KEY = "0123456789abcdef" * 2


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_answers_and_one_that_does_not() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://user:{KEY}@127.0.0.1"
    try:
        found = examine_wandb({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}"})
        assert str(found).endswith("a key is set, and 127.0.0.1 answers")
    finally:
        server.shutdown()
        server.server_close()
    lost = examine_wandb({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"{address}:{free_ports(1)[0]}"})
    assert lost.word == "slow"
    assert "127.0.0.1 does not answer" in lost.found
    assert KEY not in str(lost)


def test_nothing_is_asked_where_nothing_is_sent() -> None:
    assert "WANDB_API_KEY is not set" in str(examine_wandb({}))
    assert "offline" in str(examine_wandb({"WANDB_MODE": "offline", "WANDB_API_KEY": KEY}))
