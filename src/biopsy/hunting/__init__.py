"""Many models: which engines disagree on which of them, and which distinct bugs that comes from."""
