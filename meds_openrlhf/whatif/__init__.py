"""What a run does to itself, and what each method would do to it, from its rollouts alone; no training, no GPU."""
