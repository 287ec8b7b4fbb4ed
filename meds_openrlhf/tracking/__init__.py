"""A run's output for its user: step metrics, and what sends them to dashboards."""
