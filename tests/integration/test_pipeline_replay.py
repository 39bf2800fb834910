"""Rows that a rollback has come from the log again, beside dead letters."""

from __future__ import annotations

import pytest

from calve.errors import Conflict
from calve.manager import IcebergManager
from calve.model import TableName
from calve.wal import Rejected
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import site


def test_rows_of_which_some_were_set_aside_do_not_come_again(make_settings: MakeSettings) -> None:
    flags = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
    with site(make_settings(**flags)) as made, IcebergManager(made.settings) as manager:
        log = made.intake.log.directory
        made.send("orders", [{"id": 1}, {"id": 2}])
        assert made.pipeline().drain(30)
        bad = [Rejected(b"{", "application/x-ndjson", "no row")]
        made.intake.submit(TableName.parse("orders"), bad).wait()
        assert made.pipeline().drain(30)
        made.send("orders", [{"id": 3}])
        assert made.pipeline().drain(30)
        before, with_letter, _ = manager.list_snapshots("orders")
        with pytest.raises(Conflict, match="among the dead letters"):
            manager.rollback("orders", before.id, replay=True, log=log)
        manager.rollback("orders", with_letter.id, replay=True, log=log)
        made.require_each_once("orders", 3)
        assert made.pipeline().drain(30)
        made.require_each_once("orders", 4)
        assert manager.verify_topic("orders", log=log).is_sound
