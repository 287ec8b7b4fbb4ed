"""OpenRLHF, which this package extends and does not change: its parser, its classes, and its needs."""
