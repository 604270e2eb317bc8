"""From the tree of a report to what a person reads: the page."""
