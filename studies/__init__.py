"""Methods x tasks x seeds in one file: studies, and the scripts that make, judge and report them."""
