"""Read a run: its rollout log, joined with the memory; its metrics and what they mean; its settings in words."""
