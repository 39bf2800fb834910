"""Which methods are administrative, and what their actions are called in the audit log.

Rows that are taken in, read, queried and acknowledged are not: that is what a lake is for. Whoever
adds a method to one of these classes puts it here, or says in the test of this list why not.
"""

from __future__ import annotations

from typing import Final

TABLES: Final = {
    "create_table": "table.create",
    "rename_table": "table.rename",
    "drop_table": "table.drop",
    "update_data": "table.update",
    "delete_data": "table.delete",
    "upsert_data": "table.upsert",
    "rollback": "table.rollback",
    "expire_snapshots": "table.expire_snapshots",
    "remove_orphans": "table.remove_orphans",
    "evolve_schema": "table.evolve",
    "add_column": "table.add_column",
    "rename_column": "table.rename_column",
    "drop_column": "table.drop_column",
    "alter_column": "table.alter_column",
    "alter_partition": "table.alter_partition",
    "create_branch": "branch.create",
    "delete_branch": "branch.delete",
    "publish_branch": "branch.publish",
    "create_tag": "tag.create",
    "delete_tag": "tag.delete",
}
TOPICS: Final = {
    "create_topic": "topic.create",
    "alter_topic": "topic.alter",
    "delete_topic": "topic.delete",
    "adopt_new_log": "topic.adopt",
}
PIPELINE: Final = {
    "pause": "pipeline.pause",
    "resume": "pipeline.resume",
    "skip": "pipeline.skip",
}
SUBSCRIPTIONS: Final = {
    "seek": "subscription.seek",
    "reset": "subscription.reset",
    "delete": "subscription.delete",
}
DEAD_LETTERS: Final = {
    "replay": "dead_letter.replay",
    "replay_some": "dead_letter.replay",
    "discard": "dead_letter.discard",
    "discard_some": "dead_letter.discard",
}
TOKENS: Final = {"create": "token.create", "revoke": "token.revoke"}
FOLLOWERS: Final = {"unfollow": "follower.delete"}
WAL_REPAIR: Final = "wal.repair"
ALL: Final = frozenset(
    {
        WAL_REPAIR,
        *TABLES.values(),
        *TOPICS.values(),
        *PIPELINE.values(),
        *SUBSCRIPTIONS.values(),
        *DEAD_LETTERS.values(),
        *TOKENS.values(),
        *FOLLOWERS.values(),
    }
)
