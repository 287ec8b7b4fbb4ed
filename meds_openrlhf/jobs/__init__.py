"""Runs as jobs on a Ray cluster: packaging, environment, submission, and following a job to its end."""
