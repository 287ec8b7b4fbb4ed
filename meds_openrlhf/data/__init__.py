"""Prompt templates and data sets."""
