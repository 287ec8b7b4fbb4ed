"""Drawing samples: blocks of work, vLLM engines on a Ray cluster, and the assignment of blocks to engines."""
