"""Which transformation of a model is wrong: a simplifier, an optimizer, a quantizer, a converter, and which pass of it.

The modules ``tools`` and ``child`` run in the interpreter that has the tool, which need not have anything else: they
import the standard library and the tool alone.
"""
