"""Addresses of other machines, such as ``s3://key:secret@bucket/runs``, and the credentials that may stand in them."""

from __future__ import annotations

import re

# A name and password, also where a slash in the password ends the host as it is read, at what is no port's number.
_USER = re.compile(r"(?<=://)([^/?#]*|[^/?#@]*:(?!\d*([/?#]|$)).*)@", re.DOTALL)
# The same inside a longer text, where white space ends an address.
_USER_IN_TEXT = re.compile(r"://([^/?#\s]*|[^/?#\s@]*:(?!\d*([/?#\s]|$))\S*)@")


def without_credentials(address: str) -> str:
    """``s3://key:secret@bucket/runs?region=x`` to ``s3://bucket/runs``; a path of this machine as it is."""
    if "://" not in address:
        return address
    return re.split(r"[?#]", _USER.sub("", address, count=1), maxsplit=1)[0]


def names_a_user(text: str) -> bool:
    """Whether an address somewhere in ``text`` holds a user's name, and with it perhaps a password."""
    return _USER_IN_TEXT.search(text) is not None
