"""A search with a check: what is asked, remembered, limited, resumed, and checked at the end."""
