"""Checks: whatever decides about one candidate, and the outcomes and signatures they give."""
