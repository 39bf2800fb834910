"""The client of a running service."""

from calve.client.client import Client
from calve.client.delivery import Delivered, Delivery

__all__ = ["Client", "Delivered", "Delivery"]
