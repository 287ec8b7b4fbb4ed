"""Scripts for the analysis of finished runs: the paper's analyses, one per file (docs/analyses.md)."""
