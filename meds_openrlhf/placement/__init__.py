"""From a run's wishes and the cluster's inventory to a plan, and from the plan to Ray placement groups."""
