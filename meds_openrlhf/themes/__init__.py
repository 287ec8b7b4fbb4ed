"""Themes: kinds of errors across prompts, made of the clusters of single prompts."""
