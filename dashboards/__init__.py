"""Dashboards for runs: Grafana's as JSON, and a script that creates W&B's."""
