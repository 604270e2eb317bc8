"""Which builds, choices or settings of an engine go with a failure."""
