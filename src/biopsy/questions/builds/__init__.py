"""What an engine chose and what it was told: which of its builds, choices or settings goes with a failure."""
