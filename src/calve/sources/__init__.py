"""Where the rows of topics come from: the logs of their partitions, here or elsewhere."""
