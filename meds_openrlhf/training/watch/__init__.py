"""Messages between the driver and the trainer, and how the driver monitors the run."""
