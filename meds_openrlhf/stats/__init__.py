"""Shared statistics and plots: estimates with their intervals, tables and figures."""
