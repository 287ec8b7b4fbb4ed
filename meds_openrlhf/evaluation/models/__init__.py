"""The models that are evaluated: what a name means, what has to be known of it, and checkpoints as vLLM loads them."""
