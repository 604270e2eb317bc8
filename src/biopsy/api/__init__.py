"""The functions of the public Python API: what the commands do, without a terminal."""
