"""Sampling a checkpoint on benchmarks, pass@k with its uncertainty, and the tables and curves of it."""
