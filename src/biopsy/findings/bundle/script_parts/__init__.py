"""The functions that ``reproduce.py`` is put together from. biopsy itself calls none of them.

A script gets copies of the functions that it needs, with the imports that they use. So modules import only the standard
library at their top, and functions import everything else. Names and comments are for readers who have never heard of
biopsy; annotations are left out because they would make a script much longer.
"""
