"""What ``reproduce.py`` is put together from: functions that need neither biopsy nor each other's imports.

Nothing here is called by biopsy. The functions are copied into the script as they stand, one module after the other,
without docstrings of modules and without their imports of one another; so they may import only the standard library
at their top, and all else inside. Whoever reads the script has never heard of biopsy and wants to see at once what it
does: names and comments are for them, and annotations, which would double the script, are left out.
"""
