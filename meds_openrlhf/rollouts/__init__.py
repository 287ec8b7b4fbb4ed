"""A run's rollouts: a step as one value, their log, the join of log and memory, and their clusters."""
