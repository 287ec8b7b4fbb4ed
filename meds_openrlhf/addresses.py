"""Addresses of other machines, such as ``s3://key:secret@bucket/runs``, and the credentials in them."""

from __future__ import annotations

import re

# User name and password, also if the password contains a slash: the text before the slash is then no valid port.
_USER = re.compile(r"(?<=://)([^/?#]*|[^/?#@]*:(?!\d*([/?#]|$)).*)@", re.DOTALL)
# The same inside a longer text, in which white space ends an address.
_USER_IN_TEXT = re.compile(r"://([^/?#\s]*|[^/?#\s@]*:(?!\d*([/?#\s]|$))\S*)@")


def without_credentials(address: str) -> str:
    """Turn ``s3://key:secret@bucket/runs?region=x`` into ``s3://bucket/runs``; local paths stay unchanged."""
    if "://" not in address:
        return address
    return re.split(r"[?#]", _USER.sub("", address, count=1), maxsplit=1)[0]


def credentials_in(text: str) -> list[str]:
    """The ``user:password`` of each address in ``text``."""
    return [match.group(1) for match in _USER_IN_TEXT.finditer(text)]


def names_a_user(text: str) -> bool:
    """Return whether ``text`` contains an address with a user name, and therefore possibly a password."""
    return _USER_IN_TEXT.search(text) is not None
