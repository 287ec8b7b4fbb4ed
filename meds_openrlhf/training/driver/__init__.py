"""A run as its driver sees it: started, followed, interrupted, and what it says when something is lost."""
