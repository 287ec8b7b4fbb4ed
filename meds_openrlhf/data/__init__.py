"""Prompt templates and data sets, the demo's synthetic task among them."""
