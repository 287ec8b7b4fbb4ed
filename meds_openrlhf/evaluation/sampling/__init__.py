"""Drawing samples: blocks of work, vLLM engines on a Ray cluster, and progress on the console."""
