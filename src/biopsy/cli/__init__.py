"""The command line. ``commands`` names the module of each command; only this package knows the terminal."""
