"""Named tensors on disk and in memory: stores, Polygraphy's JSON, feeds."""
