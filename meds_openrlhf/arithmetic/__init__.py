"""The demo's task: sums with known mistakes, a tokenizer of characters, and a tiny policy warm-started on it."""
