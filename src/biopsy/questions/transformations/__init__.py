"""Which tool breaks a model (a simplifier, optimizer, quantizer or converter), and which of its passes.

The modules ``tools`` and ``child`` run in the interpreter that has the tool, which may have nothing else: they import
only the standard library and the tool.
"""
