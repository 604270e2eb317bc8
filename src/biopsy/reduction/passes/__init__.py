"""Passes, a file for each family: every pass is a way to propose smaller candidates."""
