"""The `meds` command, one file per subcommand; heavy imports happen inside functions."""
