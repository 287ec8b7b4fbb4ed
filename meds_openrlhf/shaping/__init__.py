"""Room C: from the size of the cluster of past errors to the reward that the policy is trained on."""
