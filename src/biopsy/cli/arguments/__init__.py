"""Options: the types of their values, groups that several commands share, and files that have one purpose each."""
