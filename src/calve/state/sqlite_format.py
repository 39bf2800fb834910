"""The tables of the registry's SQLite file, and how a file of an older version gets the newer ones.

A version only adds tables, so that nothing is lost on the way, and a process of the older Calve
that has the file open goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlite3 import Connection

APPLICATION_ID: Final = 0x43414C56  # "CALV": the file is Calve's

_REGISTRY: Final = (
    """CREATE TABLE topics (
        tenant TEXT NOT NULL, dataset TEXT NOT NULL, name TEXT NOT NULL,
        content BLOB NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (tenant, dataset, name)) WITHOUT ROWID""",
    """CREATE TABLE committed (
        topic_id TEXT NOT NULL, partition INTEGER NOT NULL,
        log_id TEXT NOT NULL, log_offset INTEGER NOT NULL, at_us INTEGER NOT NULL,
        PRIMARY KEY (topic_id, partition)) WITHOUT ROWID""",
    """CREATE TABLE appended (
        topic_id TEXT NOT NULL, partition INTEGER NOT NULL, bytes INTEGER NOT NULL,
        PRIMARY KEY (topic_id, partition)) WITHOUT ROWID""",
    "CREATE TABLE ended_streams (stream_id TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE changes (only INTEGER PRIMARY KEY CHECK (only = 1), count INTEGER NOT NULL)",
    "INSERT INTO changes VALUES (1, 0)",
)
_PIPELINE: Final = (
    """CREATE TABLE leases (
        name TEXT PRIMARY KEY, owner TEXT NOT NULL,
        taken_us INTEGER NOT NULL, length_us INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE flush_requests (
        topic_id TEXT NOT NULL, partition INTEGER NOT NULL, log_offset INTEGER NOT NULL,
        PRIMARY KEY (topic_id, partition)) WITHOUT ROWID""",
    """CREATE TABLE skips (
        topic_id TEXT NOT NULL, partition INTEGER NOT NULL, log_offset INTEGER NOT NULL,
        PRIMARY KEY (topic_id, partition)) WITHOUT ROWID""",
    "CREATE TABLE paused (topic_id TEXT PRIMARY KEY) WITHOUT ROWID",  # the empty one: all
    """CREATE TABLE progress (
        topic_id TEXT NOT NULL, partition INTEGER NOT NULL, content BLOB NOT NULL,
        PRIMARY KEY (topic_id, partition)) WITHOUT ROWID""",
    "CREATE TABLE published (only INTEGER PRIMARY KEY CHECK (only = 1), at_us INTEGER NOT NULL)",
)
_RESETS: Final = (
    """CREATE TABLE resets (
        topic_id TEXT NOT NULL, partition INTEGER NOT NULL,
        count INTEGER NOT NULL, held_until_us INTEGER NOT NULL,
        PRIMARY KEY (topic_id, partition)) WITHOUT ROWID""",
)
_SUBSCRIPTIONS: Final = (
    "CREATE TABLE keepers (partition INTEGER PRIMARY KEY, keeper TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE subscriptions (
        subscription TEXT NOT NULL, namespace TEXT NOT NULL, topic TEXT NOT NULL,
        topic_id TEXT NOT NULL, generation INTEGER NOT NULL, token INTEGER NOT NULL,
        created_us INTEGER NOT NULL,
        PRIMARY KEY (subscription, namespace, topic)) WITHOUT ROWID""",
    """CREATE TABLE positions (
        subscription TEXT NOT NULL, namespace TEXT NOT NULL, topic TEXT NOT NULL,
        partition INTEGER NOT NULL, log_offset INTEGER NOT NULL,
        PRIMARY KEY (subscription, namespace, topic, partition)) WITHOUT ROWID""",
    """CREATE TABLE subscribers (
        subscription TEXT NOT NULL, namespace TEXT NOT NULL, topic TEXT NOT NULL,
        owner TEXT NOT NULL, taken_us INTEGER NOT NULL, length_us INTEGER NOT NULL,
        PRIMARY KEY (subscription, namespace, topic)) WITHOUT ROWID""",
    "CREATE TABLE generations (only INTEGER PRIMARY KEY CHECK (only = 1), count INTEGER NOT NULL)",
    "INSERT INTO generations VALUES (1, 0)",
    """CREATE TABLE followers (
        table_name TEXT NOT NULL, follower TEXT NOT NULL,
        snapshot_id INTEGER NOT NULL, at_us INTEGER NOT NULL,
        PRIMARY KEY (table_name, follower)) WITHOUT ROWID""",
    """CREATE TABLE following (
        table_name TEXT NOT NULL, follower TEXT NOT NULL,
        taken_us INTEGER NOT NULL, length_us INTEGER NOT NULL,
        PRIMARY KEY (table_name, follower)) WITHOUT ROWID""",
)
_ACCESS: Final = (
    "CREATE TABLE tokens (id TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE signing_keys (name TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID",
)
_REWOUND: Final = (
    """CREATE TABLE rewound (
        topic_id TEXT NOT NULL, partition INTEGER NOT NULL, log_offset INTEGER NOT NULL,
        PRIMARY KEY (topic_id, partition)) WITHOUT ROWID""",
)
# What each version brought.
_VERSIONS: Final = (_REGISTRY, _PIPELINE, _RESETS, _SUBSCRIPTIONS, _ACCESS, _REWOUND)
FORMAT_VERSION: Final = len(_VERSIONS)


def bring_up_to_date(connection: Connection, version: int) -> None:
    """Give a file of that version, 0 for an empty one, all tables; inside of a transaction."""
    for statements in _VERSIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
