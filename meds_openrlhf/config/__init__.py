"""Typed configuration of a run: one YAML file plus dotted overrides. Imports nothing heavy."""

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import RunConfig, load_config
from meds_openrlhf.config.schema import MedsSettings, MemorySettings, PenaltySettings

__all__ = ["ConfigError", "MedsSettings", "MemorySettings", "PenaltySettings", "RunConfig", "load_config"]
