"""Ask a language model for scores: questions, the client, and the cache of replies."""
