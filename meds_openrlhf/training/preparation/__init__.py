"""From a configuration to a job that has passed every check: flags, models, data, and its place in the cluster."""
