"""Scripts that a researcher runs on finished runs: the paper's analyses, one a file (docs/analyses.md)."""
