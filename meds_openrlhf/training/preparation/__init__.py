"""Turns a configuration into a checked job: flags, models, data, and its placement in the cluster."""
