"""The audit log: who did what to a lake, when, from where, and what became of it.

Every administrative action is written down before it is done and again when it has ended, whether
it came over the network, from a command or from a program that opened the lake.
"""

from calve.audit.actor import Actor, Door, actor_now, at_door
from calve.audit.audited import audited
from calve.audit.trail import Trail, records

__all__ = ["Actor", "Door", "Trail", "actor_now", "at_door", "audited", "records"]
