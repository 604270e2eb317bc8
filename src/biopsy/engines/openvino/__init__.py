"""OpenVINO, what it made of a model, and the inputs that it ignores."""
