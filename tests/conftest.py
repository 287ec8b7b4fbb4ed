"""Settings of all tests."""

from hypothesis import settings

# No test is about time, and a busy machine is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
