"""Public bugs, and the fingerprints by which their small failing models are known again."""
