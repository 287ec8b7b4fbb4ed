"""A cache of replies on disk, a file per reply, so that no request is paid for twice.

A file's name is the hash of the protocol and the whole request body: model, texts and sampling settings. The address is
not included, because the port of a local server changes with every start. If a model changes but keeps its name, use
another folder.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from analysis.judge.protocols import Body, Reply
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import write_atomically


class ReplyCache:
    """The replies below ``folder``. Processes may share it: writes are atomic, and equal requests share a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, protocol: str, body: Body) -> Path:
        """The path of the reply to this request, whether or not it exists."""
        request = json.dumps({"protocol": protocol, "body": body}, sort_keys=True)
        name = hashlib.sha256(request.encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.json"

    def read(self, protocol: str, body: Body) -> Reply | None:
        """The reply, or None if there is none yet. Raises ConfigError if the file does not contain a reply."""
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
        """Store the reply, together with its request for inspection."""
        entry = {"text": reply.text, "tokens": reply.tokens, "protocol": protocol, "request": body}
        # In ASCII, because a reply may contain a lone surrogate, which UTF-8 cannot encode.
        write_atomically(self.path(protocol, body), json.dumps(entry, indent=1) + "\n")
