"""Ask a language model for scores: questions, HTTP protocols, and the cache of replies."""
