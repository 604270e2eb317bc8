"""Equivalent spellings: the same function of the same inputs, in other nodes. One module for each family."""
