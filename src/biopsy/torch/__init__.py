"""From a PyTorch module to the guilty line of Python: what runs in the process that has the module."""
