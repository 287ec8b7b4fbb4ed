"""Drawing samples: blocks of work, and the vLLM engines on a Ray cluster that they go to."""
