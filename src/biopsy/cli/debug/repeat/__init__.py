"""``biopsy debug repeat``: how often a command fails, and in which ways."""
