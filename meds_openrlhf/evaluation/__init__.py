"""Sampling a checkpoint on benchmarks, pass@k with its uncertainty, and tables and curves of the results."""
