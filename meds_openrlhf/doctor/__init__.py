"""`meds doctor`: finds what would break or slow a run on a machine or cluster, before the run does."""
