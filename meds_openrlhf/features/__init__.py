"""Room A: where the answer token is, the layer logits recorded there, and the feature vector made of them."""
