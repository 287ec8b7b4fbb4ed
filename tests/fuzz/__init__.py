"""Damages genuine files of every kind that is read: `python -m tests.fuzz --inputs 10000 --seed 1`."""
