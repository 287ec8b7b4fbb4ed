"""What a run tells its user: metrics of each step, the console, the files that dashboards read."""
