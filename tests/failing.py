"""Stand-ins for functions that fail."""

from collections.abc import Callable
from typing import NoReturn


def failing(error: BaseException) -> Callable[..., NoReturn]:
    """A function of anything that raises ``error``."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
