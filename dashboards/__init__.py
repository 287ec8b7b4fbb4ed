"""What to watch a run on: Grafana's dashboard as JSON, and the program that makes W&B's."""
