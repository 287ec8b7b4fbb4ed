"""vLLM engines that survive losses and restarts without losing rollouts."""
