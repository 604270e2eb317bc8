"""The names of Polygraphy that scripts of inputs and golden values import, on the files of biopsy.

``polygraphy.json`` has ``save_json`` and ``load_json``; ``polygraphy.comparator`` has ``RunResults`` and
``IterationResult``. Nothing else of Polygraphy's Python API is here: ``biopsy.run`` and ``biopsy.compare`` run models.
"""

from __future__ import annotations
