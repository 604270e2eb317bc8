"""What ``reproduce.py`` is put together from: functions that need neither biopsy nor each other's imports.

Nothing here is called by biopsy. A script gets the functions that it calls, and those that these call, as they stand,
with the imports that they use; so modules may import only the standard library at their top, and functions all else.
Whoever reads the script has never heard of biopsy and wants to see at once what it does: names and comments are for
them, and annotations, which would double the script, are left out.
"""
