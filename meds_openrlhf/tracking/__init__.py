"""A run's output for its user: step metrics, the console, and the files that dashboards read."""
