"""Known bugs, and the fingerprints by which their small failing models are recognized."""
