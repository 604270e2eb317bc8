"""Options that files give: where the files are, which of them are trusted with what, and the words they become."""
