"""Rows of a table to the rows that follow, with intervals."""
