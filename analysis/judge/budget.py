"""The judge's cost so far, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from meds_openrlhf.config.errors import ConfigError


@dataclass
class Budget:
    """Counts requests and tokens against limits; None means no limit."""

    most_requests: int | None
    most_tokens: int | None
    requests: int = 0
    tokens: int = 0

    def take_request(self) -> None:
        """Count a request before it is sent. Raises ConfigError if a limit is reached."""
        if self.most_requests is not None and self.requests >= self.most_requests:
            raise _spent("--budget-requests", self.most_requests)
        if self.most_tokens is not None and self.tokens >= self.most_tokens:
            raise _spent("--budget-tokens", self.most_tokens)
        self.requests += 1

    def add_tokens(self, tokens: int | None) -> None:
        """Count a reply's tokens. Raises ConfigError if there is a limit and the server reports no number."""
        if tokens is None and self.most_tokens is not None:
            hint = "cannot be kept, because the server does not count tokens. Use --budget-requests."
            raise ConfigError("--budget-tokens", self.most_tokens, hint)
        self.tokens += tokens or 0


def _spent(option: str, limit: int) -> ConfigError:
    return ConfigError(option, limit, "is used up. All replies are kept: raise it and run the command again.")
