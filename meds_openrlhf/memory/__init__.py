"""The memory: shards, the pool of shards, the Arrow log, its snapshots, and the clustering.

It does not depend on tokens, rewards or OpenRLHF: it takes rows of layer logits under a prompt's key and returns
cluster labels and sizes. Any trainer can use it.
"""
