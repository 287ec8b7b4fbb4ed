"""Verifiable rewards, as files for OpenRLHF's ``reward.remote_url``."""
