"""The machine and cluster that a command runs on: signals, Ray, GPUs, the Hugging Face hub, child processes."""
