"""A run's output for its user: step metrics, the rollout log, and what sends them to dashboards."""
