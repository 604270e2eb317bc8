"""One file for each tool: how it is called, the names of its passes, how one is left out."""
