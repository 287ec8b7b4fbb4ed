"""Adapters to OpenRLHF, which this package extends without changing it: its parser, its classes, and CPU support."""
