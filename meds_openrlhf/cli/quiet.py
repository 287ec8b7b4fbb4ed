"""What libraries print while they load, silenced."""

from __future__ import annotations

import os


def quiet_start(verbose: bool) -> None:
    """Silence what the libraries print while they load, which does not concern the user's run."""
    if verbose:
        return
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)  # it resets a level
