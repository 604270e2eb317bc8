"""Reducing: passes propose candidates; the driver checks them and keeps the smallest that reproduces."""
