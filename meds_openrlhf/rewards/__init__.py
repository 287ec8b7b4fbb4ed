"""Rewards that can be verified, as files that OpenRLHF's ``reward.remote_url`` takes."""
