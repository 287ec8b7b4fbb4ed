"""Features: locates the answer token, records layer logits there, and turns them into feature vectors."""
