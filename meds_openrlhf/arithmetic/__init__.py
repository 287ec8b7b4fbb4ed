"""The demo's task: arithmetic with known mistakes, a character tokenizer, and a tiny warm-started policy."""
