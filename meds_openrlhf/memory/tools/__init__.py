"""Implementation of `meds memory`: inspect, verify and replay a memory on disk."""
