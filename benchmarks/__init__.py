"""Measurements: side by side with Polygraphy, of candidates, and of big models. See RESULTS.md."""
