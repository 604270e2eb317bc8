"""Engines whose package is another release, in another Python environment than this one.

The engine itself stays here: its options, the stages and kinds of its failures, what it says of layers and precision.
Only the objects of its package stand elsewhere. ``runner`` is a small script there that does to them what it is told;
``classes`` is its other end, and lets the engine use them as if they were here. So nothing of an engine is written
twice, and every release is asked in the same way.
"""
