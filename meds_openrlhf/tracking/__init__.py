"""A run's metrics on dashboards: the trackers, and what sends a finished or running run to them."""
