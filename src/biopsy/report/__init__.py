"""The report of a command: facts of other rooms become one tree of plain values, the object of ``--report``."""
