"""Looking after tables: proving that nothing is missing."""
