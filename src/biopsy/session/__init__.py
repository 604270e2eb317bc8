"""A search with a check: what is run, remembered, limited, resumed, and verified at the end."""
