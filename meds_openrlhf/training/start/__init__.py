"""What happens before the first step: checks, placement, and the start of all actors."""
