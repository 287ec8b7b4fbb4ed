"""Asking a language model for scores: the questions, the protocols it is reached by, and the cache of its replies."""
