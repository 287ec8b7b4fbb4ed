"""The driver of a run: starts, follows and interrupts it, and reports lost processes."""
