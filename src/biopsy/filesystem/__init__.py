"""Reading, writing and removing files where somebody else may have put things before us."""
