"""Counting and drawing, for everybody: estimates with their intervals, tables and figures."""
