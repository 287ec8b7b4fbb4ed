"""What the system knows of processes that are not this one's children."""

from pathlib import Path


def is_alive(process: int) -> bool:
    """Whether it runs; one that has ended and waits for its parent does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
