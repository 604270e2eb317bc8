"""Checks, which decide about one candidate, and their outcomes and signatures."""
