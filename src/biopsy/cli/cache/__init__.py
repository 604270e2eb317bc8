"""``biopsy cache ...``: the environments that other releases of packages are installed in."""
