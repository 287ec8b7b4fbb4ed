"""Rollouts that other trainers have dumped: read them, fingerprint the wrong ones, and lay them out as a run folder."""
