"""Rows in and out over Arrow Flight."""

from calve.ingest.flight.server import FlightServer

__all__ = ["FlightServer"]
