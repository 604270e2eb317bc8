"""What the interpreter of a user's script reads before the script, to be the warm process of its checks."""
