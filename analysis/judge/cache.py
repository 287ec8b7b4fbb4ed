"""Replies on disk, a file each, so that nothing is ever paid for twice.

A file's name is the hash of the protocol and the whole request body: model, texts and sampling settings. The address
is left out, for a local server gets another port with every start; a model that changed under its name needs another
folder.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from analysis.judge.protocols import Body, Reply
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import write_atomically


class ReplyCache:
    """The replies below ``folder``. Processes may share one: files appear whole, and equal requests are one file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, protocol: str, body: Body) -> Path:
        """Where the reply to this request is, or would be."""
        request = json.dumps({"protocol": protocol, "body": body}, sort_keys=True)
        name = hashlib.sha256(request.encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.json"

    def read(self, protocol: str, body: Body) -> Reply | None:
        """The reply, or None where there is none yet. Raises ConfigError for a file that was tampered with."""
        path = self.path(protocol, body)
        try:
            entry = json.loads(path.read_bytes())
            text, tokens = entry["text"], entry["tokens"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError("--cache", str(path), "is no reply of a judge; delete that file") from error
        if not isinstance(text, str) or not isinstance(tokens, int | None):
            raise ConfigError("--cache", str(path), "is no reply of a judge; delete that file")
        return Reply(text, tokens)

    def write(self, protocol: str, body: Body, reply: Reply) -> None:
        """Keep the reply, with the request for whoever looks into the file."""
        entry = {"text": reply.text, "tokens": reply.tokens, "protocol": protocol, "request": body}
        # In ASCII: a reply may hold half a surrogate pair, which UTF-8 does not have.
        write_atomically(self.path(protocol, body), json.dumps(entry, indent=1) + "\n")
