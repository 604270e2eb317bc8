"""The page of a report: one HTML file for the eye, made of the tree of report.json and nothing else."""
