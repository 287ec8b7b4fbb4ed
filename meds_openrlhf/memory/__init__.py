"""Room B: one prompt's memory, one shard, the pool of shards; the Arrow log, its snapshots, and the clustering.

It knows nothing of tokens, rewards or OpenRLHF: rows of layer logits under a prompt's key come in, cluster labels and
sizes come out. Any trainer can use it.
"""
