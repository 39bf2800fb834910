"""Rows that a topic could not take: found, read, sent again and discarded."""
