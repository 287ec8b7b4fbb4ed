"""The only package that imports OpenRLHF; it subclasses its policy actor, experience maker and trainers."""
