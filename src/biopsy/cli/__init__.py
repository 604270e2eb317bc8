"""The command line. One file per command, at the path of its words; only this package knows the terminal."""
