"""Values and types of the original's tensors, from one reference run."""
