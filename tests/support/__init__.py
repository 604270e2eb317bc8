"""What several tests share: makers of models, and the oracle that candidates are held against."""
