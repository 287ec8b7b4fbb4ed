"""The vLLM engines: lost ones, restarted ones, and the rollouts that none of that may cost."""
