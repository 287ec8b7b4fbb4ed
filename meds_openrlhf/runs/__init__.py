"""Read a run: its metrics and what they mean, its settings in words."""
