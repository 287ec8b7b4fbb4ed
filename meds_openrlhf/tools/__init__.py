"""Tools that use memory and shaping together, outside of a training."""
