"""Memory-enhanced dynamic reward shaping (MEDS) for RL training of language models on OpenRLHF.

The rooms: ``config`` (typed settings), ``features`` (the fingerprint of an answer), ``memory`` (fingerprints of past
errors, durable and clustered), ``shaping`` (cluster size to penalty), ``placement`` (who sits on which GPU),
``training`` (the only room that knows OpenRLHF), ``rewards``, ``data``, ``tracking`` and ``cli``.
"""

__version__ = "0.1.0"
