"""The pipeline: from ranges of the log to commits of tables, on Spark."""
