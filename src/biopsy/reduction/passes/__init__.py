"""Passes, one file each: every one is a way to propose smaller candidates."""
