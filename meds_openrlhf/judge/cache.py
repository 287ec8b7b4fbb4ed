"""A cache of replies on disk, a file per reply, so that no request is paid for twice.

A file's name is the hash of the whole request body: model, texts and sampling settings. The address is not included,
because the port of a local server changes with every start. If a model changes but keeps its name, use another folder.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import write_atomically
from meds_openrlhf.json_text import parse_json

Body = dict[str, Any]  # of a request; it contains no secrets


@dataclass(frozen=True)
class Reply:
    """The judge's text, and the total tokens of question and reply, None if the server does not report them."""

    text: str
    tokens: int | None


class ReplyCache:
    """The replies below ``folder``. Processes may share it: writes are atomic, and equal requests share a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, body: Body) -> Path:
        """The path of the reply to this request, whether or not it exists."""
        request = json.dumps({"protocol": "openai", "body": body}, sort_keys=True)  # as in caches that exist
        name = hashlib.sha256(request.encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.json"

    def read(self, body: Body) -> Reply | None:
        """The reply, or None if there is none yet. Raises ConfigError if the file does not contain a reply."""
        path = self.path(body)
        try:
            entry = parse_json(path.read_bytes())
            text, tokens = entry["text"], entry["tokens"]
            if not isinstance(text, str) or not isinstance(tokens, int | None):
                raise TypeError(text, tokens)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError("--cache", str(path), "is not the reply of a judge. Delete that file.") from error
        return Reply(text, tokens)

    def write(self, body: Body, reply: Reply) -> None:
        """Store the reply, together with its request for inspection."""
        entry = {"text": reply.text, "tokens": reply.tokens, "request": body}
        # In ASCII, because a reply may contain a lone surrogate, which UTF-8 cannot encode.
        write_atomically(self.path(body), json.dumps(entry, indent=1) + "\n")
