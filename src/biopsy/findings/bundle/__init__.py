"""A failure as a folder or archive to send: the model, its inputs, and a script that reproduces the failure."""
