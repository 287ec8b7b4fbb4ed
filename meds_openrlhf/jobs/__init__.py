"""Runs as jobs on a Ray cluster: what is sent, in which environment, and how it is followed to its end."""
