"""Running, comparing, reducing and asking further from Python: what the commands do, without a terminal."""
