"""Counting and drawing, for everybody: estimates, intervals, paired statistics, tables and figures."""
