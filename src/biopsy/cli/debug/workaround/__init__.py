"""``biopsy debug workaround``: options, the question, what is shown."""
