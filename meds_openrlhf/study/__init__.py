"""Studies: methods x tasks x seeds in one file, run one after another, and judged by the rule in the file."""
