"""`calve topic verify` and the rules for fed tables, as a user calls them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from calve.cli import main
from calve.lake import Lake
from calve.maintenance import bound_log
from calve.model import TableName
from calve.settings import Settings, load_settings
from calve.tables.commit import TableCommit
from calve.tables.staging import Edit
from calve.topics.topic import Binding
from calve.wal import Log, LogOptions
from tests.fakes.pipelines import site
from tests.fakes.topic_table import data_files, feed, make_topic_table, topic_rows


class Shell:
    def __init__(
        self, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self._data, self._monkeypatch, self._capfd = data, monkeypatch, capfd

    def __call__(self, *words: str, lake_option: str = "--data") -> tuple[int, str, str]:
        given = ["calve", *words, lake_option, str(self._data)]
        self._monkeypatch.setattr("sys.argv", given)
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.calve()
        out, err = self._capfd.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(flags={"data": str(tmp_path / "lake")}, environ={}).settings


@pytest.fixture
def shell(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Shell:
    with Lake(settings) as lake:
        make_topic_table(lake.catalog)
        feed(lake.catalog, range(100))
        lake.tables.create_table("plain", {"id": "long"})
    return Shell(Path(settings.data), monkeypatch, capfd)


def test_a_sound_topic_ends_with_0(shell: Shell) -> None:
    code, out, err = shell("topic", "verify", "t")
    assert code == 0
    assert out.split()[:3] == ["PARTITION", "COMMITTED", "ROWS"]
    assert "every offset is there once" in err


def test_a_defect_ends_with_7_and_its_ranges(shell: Shell, settings: Settings) -> None:
    with Lake(settings) as lake:
        feed(lake.catalog, range(120, 150))
        lake.tables.delete_data("t", "id < 7", flush=False)
        stray = data_files(lake.catalog.load_table("t"), topic_rows([3]))
    code, out, err = shell("topic", "verify", "t", "--orphans")
    assert code == 7
    assert ["missing", "0", "100-120", "20", "-"] in [line.split() for line in out.splitlines()]
    assert any(line.startswith("removed") and "snapshot" in line for line in out.splitlines())
    assert stray[0].file_path in out
    assert "NOT SOUND" in err
    code, out, _ = shell("topic", "verify", "t", "--json")
    found = json.loads(out)
    assert (code, found["is_sound"], found["orphans"]) == (7, False, None)
    (partition,) = found["partitions"]
    assert partition["missing"] == [{"first": 100, "end": 120, "count": 20}]
    assert partition["removed"] == [{"first": 0, "end": 7, "count": 7}]
    assert partition["removed_by"][0]["ranges"] == partition["removed"]


def test_it_says_that_there_are_no_orphans(shell: Shell) -> None:
    assert "no orphans" in shell("topic", "verify", "t", "--orphans")[2]
    assert "orphans" not in shell("topic", "verify", "t")[2]


def test_a_committed_offset_that_cannot_be_read_says_what_else_to_do(
    shell: Shell, settings: Settings
) -> None:
    with Lake(settings) as lake:
        unreadable = Edit(properties={"calve.committed.0": "?"})
        TableCommit(lake.catalog.load_table("t")).attempt(unreadable)
    code, _, err = shell("topic", "verify", "t")
    assert (code, "calve.committed.0" in err, "calve topic verify" in err) == (7, True, False)
    found = shell("table", "query", "t", "--where", "_calve_offset >= 98", "--json")
    assert (found[0], len(json.loads(found[1]))) == (0, 2)


def test_removed_offsets_are_listed_once(shell: Shell, settings: Settings) -> None:
    with Lake(settings) as lake:
        for condition in ("id < 3", "id = 3", "id > 3 and id < 9"):
            lake.tables.delete_data("t", condition, flush=False)
    _, out, _ = shell("topic", "verify", "t")
    lines = [line.split() for line in out.splitlines() if line.startswith("removed")]
    assert [line[2:4] for line in lines] == [["0-3", "3"], ["3-4", "1"], ["4-9", "5"]]
    assert all("snapshot" in line for line in lines)


def test_a_topic_of_which_nothing_was_committed_ends_with_0(
    shell: Shell, settings: Settings
) -> None:
    with Lake(settings) as lake:
        lake.produce("new", [{"id": 1}, {"id": 2}])
    code, out, err = shell("topic", "verify", "new")
    assert code == 0
    assert set(out.splitlines()[1].split()) == {"0"}
    assert "new: nothing was committed yet, and its log holds 2 offsets; there is no table" in err
    code, out, _ = shell("topic", "verify", "new", "--json")
    assert (json.loads(out)["has_table"], json.loads(out)["is_sound"]) == (False, True)


@pytest.mark.parametrize("keeps_log", [True, False])
def test_a_topic_whose_table_is_gone_ends_with_7_and_what_to_do(
    shell: Shell, settings: Settings, *, keeps_log: bool
) -> None:
    with site(settings) as made:
        made.send("orders", [{"id": 1}, {"id": 2}])
        assert made.pipeline().drain(30)
        made.catalog.rename_table("orders", TableName.parse("elsewhere"))
    if not keeps_log:
        assert settings.wal.path is not None
        shutil.rmtree(settings.wal.path)
    code, out, err = shell("topic", "verify", "orders")
    assert code == 7
    assert out.splitlines()[1].split()[:3] == ["0", "2", "0"]
    assert "the table of topic orders is gone" in err
    assert "2 offsets were committed to it" in err
    assert "give the table its name back" in err
    assert "NOT SOUND" in err
    code, out, _ = shell("topic", "verify", "orders", "--json")
    assert (code, json.loads(out)["has_table"], json.loads(out)["is_sound"]) == (7, False, False)


def test_what_is_no_topic_ends_with_4(shell: Shell) -> None:
    code, _, err = shell("topic", "verify", "plain")
    assert (code, "no topic feeds it" in err) == (4, True)
    assert shell("topic", "verify", "nowhere")[0] == 4
    assert shell("topic", "verify", "t", "--log", "/nonexistent")[0] == 4


def test_the_commands_of_tables_know_the_rules(shell: Shell, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,name\n1,a\n")
    insert = ("table", "insert", "t", "--data", str(rows))
    code, _, err = shell(*insert, lake_option="--lake")
    assert (code, "calve produce" in err) == (3, True)
    assert shell(*insert, "--force", lake_option="--lake")[0] == 0
    upsert = ("table", "upsert", "t", "--data", str(rows), "--key", "id")
    assert shell(*upsert, lake_option="--lake")[0] == 3
    code, _, err = shell("table", "drop", "t", "--yes")
    assert (code, "alter the topic" in err) == (3, True)
    assert shell("table", "rename", "t", "u")[0] == 3
    code, _, err = shell("topic", "verify", "t")
    assert (code, "without an offset: 1 row" in err) == (0, True)
    assert shell("table", "rename", "t", "u", "--force")[0] == 0
    assert shell("table", "drop", "u", "--force", "--yes")[0] == 0


def test_a_rollback_can_replay(shell: Shell, settings: Settings) -> None:
    with Lake(settings) as lake:
        first = lake.tables.list_snapshots("t")[0].id
        feed(lake.catalog, range(100, 120))
    rollback = ("table", "rollback", "t", "--snapshot", str(first))
    assert shell(*rollback, "--replay")[0] == 4
    assert shell(*rollback)[0] == 0
    code, out, _ = shell("topic", "verify", "t", "--json")
    (partition,) = json.loads(out)["partitions"]
    assert (code, partition["removed"][0]["first"]) == (0, 100)


def test_rows_beyond_are_shown(shell: Shell, settings: Settings) -> None:
    with Lake(settings) as lake:
        table = lake.catalog.load_table("t")
        TableCommit(table).append(Edit(added=data_files(table, topic_rows([500]))))
    code, out, _ = shell("topic", "verify", "t")
    assert (code, "500-501" in out) == (7, True)


def test_a_file_that_is_gone_ends_with_7_and_a_report(shell: Shell, settings: Settings) -> None:
    with Lake(settings) as lake:
        feed(lake.catalog, range(100, 120))
        table = lake.catalog.load_table("t")
        gone = next(iter(table.scan(row_filter="_calve_offset < 100").plan_files())).file.file_path
        table.io.delete(gone)
    code, out, _ = shell("topic", "verify", "t", "--json")
    found = json.loads(out)
    assert (code, found["is_sound"], found["rows"]) == (7, False, 20)
    assert gone in found["problems"][0]
    assert found["partitions"][0]["missing"] == [{"first": 0, "end": 100, "count": 100}]
    code, out, err = shell("topic", "verify", "t")
    assert (code, "0-100" in out, gone in err, "NOT SOUND" in err) == (7, True, True, True)


def lose_log(settings: Settings, committed: int) -> Binding:
    """Ten rows are produced, some of them committed, and the log's directory goes; where they were."""
    with Lake(settings) as lake:
        lake.produce("orders", [{"id": n} for n in range(10)])
        bound = lake.intake.topics.topic(TableName.parse("orders")).partitions[0]
        if committed:
            make_topic_table(lake.catalog, "orders")
            feed(lake.catalog, range(committed), name="orders", log=bound.stream_id)
    shutil.rmtree(wal(settings))
    return bound


def wal(settings: Settings) -> Path:
    assert settings.wal.path is not None
    return settings.wal.path


@pytest.mark.parametrize("committed", [0, 6])
@pytest.mark.parametrize("is_another_there", [False, True])
def test_a_log_that_is_lost_ends_with_7_and_its_name(
    shell: Shell, settings: Settings, *, committed: int, is_another_there: bool
) -> None:
    bound = lose_log(settings, committed)
    if is_another_there:
        Log(wal(settings), LogOptions(free_bytes_min=0)).close()
    code, _, err = shell("topic", "verify", "orders")
    assert code == 7
    for told in (bound.log_id, bound.stream_id, wal(settings), "--new-log", "NOT SOUND"):
        assert str(told) in err
    assert f"rows from offset {committed} on cannot be accounted for" in err
    code, out, _ = shell("topic", "verify", "orders", "--json")
    found = json.loads(out)
    assert (code, found["is_sound"], found["has_table"]) == (7, False, committed > 0)
    assert found["partitions"][0]["log"]["durable"] is None


def test_a_log_that_may_be_on_another_machine_is_not_asked_for(
    shell: Shell, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_log(settings, committed=6)
    monkeypatch.setattr(bound_log, "state_kind", lambda _: "postgresql")
    assert shell("topic", "verify", "orders")[0] == 0
