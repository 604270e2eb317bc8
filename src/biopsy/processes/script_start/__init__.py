"""Files that the interpreter of a user's script imports before the script, to become the warm process of its checks."""
