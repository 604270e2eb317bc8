"""What is wrong with a model, node by node: its form, the standard's own checker, and what an engine makes of it."""
