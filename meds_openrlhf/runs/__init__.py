"""Read a run: its log of rollouts, joined with the memory; its metrics and what they mean; its settings in words."""
