"""Reward shaping: turns the size of a cluster of past errors into the reward that the policy is trained on."""
