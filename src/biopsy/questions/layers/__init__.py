"""Which layers an engine computes wrongly: one by one, in groups, in the whole model."""
