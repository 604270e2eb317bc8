"""``biopsy run``: run a model in one or more engines and compare what they give."""
