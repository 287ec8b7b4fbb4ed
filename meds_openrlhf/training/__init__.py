"""The only room that knows OpenRLHF: its parser, policy actor, experience maker and trainers, extended by subclass."""
