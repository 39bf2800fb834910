"""A running service: the doors of an ingest process, who watches over it, and how it is found."""
