"""HTTP: rows and messages in, topics, flush, health and the document that describes it all.

Needs the part `server`; load it with `calve.parts.load_part("server", "calve.ingest.http")`.
"""

from calve.ingest.http.server import HttpServer

__all__ = ["HttpServer"]
