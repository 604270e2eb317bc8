"""The questions that are asked about a failing model: each answers with one record."""
