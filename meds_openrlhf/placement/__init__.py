"""Makes a placement plan from a run's requests and the cluster's inventory, and Ray placement groups from the plan."""
