"""One training step, in the order of the data: prompts, responses, log-probs, memory, rewards, update, checkpoint."""
