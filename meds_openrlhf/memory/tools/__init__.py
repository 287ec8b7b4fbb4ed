"""Implementation of `meds memory`: inspect, verify, replay and export a memory on disk."""
