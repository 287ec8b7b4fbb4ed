"""Models to evaluate: resolve names, read configurations and tokenizers, and convert checkpoints for vLLM."""
