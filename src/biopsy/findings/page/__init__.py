"""The page of a report: one HTML file that is made from the tree of report.json alone."""
