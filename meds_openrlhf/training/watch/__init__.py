"""The driver and the trainer talk to each other, and the driver watches over the run."""
