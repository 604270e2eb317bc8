"""A failure as a folder to send: the result, its inputs, and a script that shows the failure without biopsy."""
