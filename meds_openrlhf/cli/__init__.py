"""The `meds` command, a file for each subcommand or a few of them; heavy imports happen inside functions."""
