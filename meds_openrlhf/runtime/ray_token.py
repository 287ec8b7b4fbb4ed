"""The token that a Ray cluster of ours asks for: a file that only this user can read.

Ray itself would make one for all clusters of a user, in the home folder, readable by everyone. For Slurm's script,
`python3 -m meds_openrlhf.runtime.ray_token CONFIG [OVERRIDES]` makes that of a job, in the run's folder.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.files import write_atomically

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def write_token(path: Path) -> Path:
    """Write a new token to ``path``, in place of an older one, with mode 0600. Raises OSError."""
    path.unlink(missing_ok=True)  # also a link, whose target stays
    write_atomically(path, secrets.token_hex(32), 0o600)
    return path


def main(words: Sequence[str]) -> int:
    """Make the token of a Slurm job and print its path; exit code 2 if the configuration is wrong."""
    try:
        at = next((at for at, word in enumerate(words) if not word.startswith("--")), None)  # behind --resume, say
        if at is None:
            raise ConfigError("CONFIG", None, "must be given.")
        config, overrides = words[at], [*words[:at], *words[at + 1 :]]
        folder = Path(load_config(config, overrides).meds.run_dir).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        print(write_token(folder / f".ray-token-{os.environ['SLURM_JOB_ID']}"))
    except ConfigError as error:
        print(f"meds: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"meds: meds.run_dir: cannot be written to ({error}).", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
