"""Sending a run's metrics to TensorBoard and Weights & Biases: processes that follow its files, and hold up nothing."""
