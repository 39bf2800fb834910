"""`calve table`, `branch`, `tag`, `sql` and `iceberg-manager`, as a user calls them."""

from __future__ import annotations

import io
import json
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.cli import main

# As the documentation of the interface quotes them, in its order.
QUOTED = """\
iceberg-manager create users --schema schema.json
iceberg-manager insert users --data users.csv
iceberg-manager query users --where "age > 30"
iceberg-manager query users --snapshot 12345
iceberg-manager query users --timestamp "2024-01-01 10:00:00"
iceberg-manager add-column users email string
iceberg-manager rename-column users name full_name
iceberg-manager list-snapshots users
iceberg-manager rollback users --snapshot 12340
iceberg-manager expire-snapshots users --days 30
"""
SCHEMA = {
    "columns": [
        {"name": "id", "type": "long", "required": True, "doc": "who it is"},
        {"name": "name", "type": "string"},
        {"name": "age", "type": "int"},
    ]
}
USERS = "id,name,age\n1,Ada,36\n2,Alan,28\n3,Grace,45\n"
NEW_YEAR_2023 = datetime(2023, 1, 1, tzinfo=UTC).timestamp() * 1000


class Run(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Shell = Callable[..., Run]


@pytest.fixture
def shell(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Shell:
    """Runs a line as a shell would, in an empty directory with `users.csv` and `schema.json`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users.csv").write_text(USERS, "utf-8")
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), "utf-8")

    def run(line: str, *, code: int = 0, stdin: bytes = b"") -> Run:
        program, *_ = arguments = shlex.split(line)
        monkeypatch.setattr("sys.argv", arguments)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            (main.calve if program == "calve" else main.iceberg_manager)()
        out, err = capfdbinary.readouterr()
        result = Run(int(ended.value.code or 0), out.decode("utf-8", "replace"), err.decode())
        assert result.code == code, (line, result)
        assert "Traceback" not in result.err
        return result

    return run


@contextmanager
def in_2023() -> Iterator[None]:
    """Snapshots are numbered 12340, 12345, … and made in 2023."""
    numbers, moments = count(12340, 5), count(int(NEW_YEAR_2023), 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyiceberg.table.metadata._generate_snapshot_id", lambda: next(numbers))
        clock = SimpleNamespace(time=lambda: next(moments) / 1000)
        patch.setattr("pyiceberg.table.snapshots.time", clock)
        for module in ("metadata", "update"):
            patch.setattr(f"pyiceberg.table.{module}.datetime_to_millis", lambda _: next(moments))
        yield


def test_the_ten_lines_work_as_they_stand(shell: Shell, tmp_path: Path) -> None:
    lines = QUOTED.splitlines()
    assert len(lines) == 10
    with in_2023():
        for line in lines[:2]:
            shell(line)
        shell("calve table insert users --data users.csv")
        ran = [shell(line) for line in lines[2:]]
    wanted, by_snapshot, by_time, added, renamed, listed, _, expired = ran
    assert [row.split() for row in wanted.out.splitlines()[1:]].count(["1", "Ada", "36"]) == 2
    assert "Alan" not in wanted.out
    assert by_snapshot.out.count("Alan") == 2
    assert by_time.out.count("Alan") == 2
    assert "as of 2024-01-01 10:00:00 UTC: snapshot 12345" in by_time.err
    assert added.out.split().count("email") == 1
    assert "full_name" in renamed.out
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == ["12340", "12345"]
    assert "1 snapshot forgotten" in expired.err
    left = shell("iceberg-manager query users --json").json()
    assert left == [
        {"id": 1, "full_name": "Ada", "age": 36, "email": None},
        {"id": 2, "full_name": "Alan", "age": 28, "email": None},
        {"id": 3, "full_name": "Grace", "age": 45, "email": None},
    ]
    assert (tmp_path / "calve-data" / "users").is_dir()


def test_a_table_from_data_and_every_format_of_rows(shell: Shell, tmp_path: Path) -> None:
    made = shell("calve table create users --from-data users.csv --sort-by 'id desc' --json")
    assert [column["type"] for column in made.json()["columns"]] == ["long", "string", "long"]
    assert shell("calve table query users").out.split()[:3] == ["id", "name", "age"]
    shell("calve table insert users --data users.csv")
    lines = b'{"id": 4, "name": "Barbara", "age": 50}\n'
    change = shell("calve table insert users --data - --format ndjson --json", stdin=lines)
    assert change.json()["inserted_rows"] == 1
    pq.write_table(
        pa.table({"id": [5], "name": ["Edsger"], "age": [72]}), tmp_path / "more.parquet"
    )
    said = shell("calve table insert users --data more.parquet")
    assert "1 row inserted" in said.err
    assert said.out == ""
    question = "calve table query users --where 'id >= 4' --columns id,name"
    assert shell(f"{question} --format csv").out.splitlines()[0] == '"id","name"'
    found = sorted(shell(f"{question} --json").json(), key=lambda row: row["id"])
    assert found == [{"id": 4, "name": "Barbara"}, {"id": 5, "name": "Edsger"}]
    shell(f"{question} --format parquet --output found.parquet")
    names = pq.read_table(tmp_path / "found.parquet")["name"].to_pylist()
    assert sorted(names) == ["Barbara", "Edsger"]
    shell(f"{question} --format arrow --output found.arrow")
    with pa.ipc.open_stream(tmp_path / "found.arrow") as reader:
        assert sorted(reader.read_all()["id"].to_pylist()) == [4, 5]
    assert len(shell("calve table query users --limit 2 --json").json()) == 2


def test_the_ending_of_a_file_says_how_rows_are_written(shell: Shell, tmp_path: Path) -> None:
    shell("calve table create users --from-data users.csv")
    shell("calve table insert users --data users.csv")
    asked = "calve table query users --where 'id = 1'"
    shell(f"{asked} --output one.csv")
    assert (tmp_path / "one.csv").read_text() == '"id","name","age"\n1,"Ada",36\n'
    shell(f"{asked} --output one.PARQUET")
    assert pq.read_table(tmp_path / "one.PARQUET")["name"].to_pylist() == ["Ada"]
    shell(f"{asked} --output one.csv --format ndjson")
    assert (tmp_path / "one.csv").read_text() == '{"id":1,"name":"Ada","age":36}\n'
    shell(f"{asked} --output one.csv --json")
    assert json.loads((tmp_path / "one.csv").read_text()) == [{"id": 1, "name": "Ada", "age": 36}]
    assert "no format; use --format" in shell(f"{asked} --output one.xyz", code=2).err
    assert "two formats" in shell(f"{asked} --json --format csv", code=2).err
    shell(f"{asked} --output one.txt")
    assert (tmp_path / "one.txt").read_text().splitlines()[0].split() == ["id", "name", "age"]
    assert shell(f"{asked} --output - --format csv").out.splitlines()[1] == '1,"Ada",36'


def test_an_answer_that_breaks_off_leaves_a_file_as_it_was(shell: Shell, tmp_path: Path) -> None:
    shell("calve table create users --from-data users.csv")
    shell("calve table insert users --data users.csv")
    known = tmp_path / "known.csv"
    known.write_text("what was here")
    known.chmod(0o640)
    before = set(tmp_path.iterdir())
    broken = "calve table query users --where 'CAST(name AS INTEGER) = 1' --output"
    shell(f"{broken} known.csv", code=3)
    shell(f"{broken} new.csv", code=3)
    assert known.read_text() == "what was here"
    assert set(tmp_path.iterdir()) == before
    (tmp_path / "link.csv").symlink_to("known.csv")
    shell("calve table query users --where 'id = 1' --output link.csv")
    assert known.read_text() == '"id","name","age"\n1,"Ada",36\n'
    assert stat.S_IMODE(known.stat().st_mode) == 0o640
    assert (tmp_path / "link.csv").is_symlink()
    failed = shell("calve table query users --output nowhere/new.csv", code=3)
    assert "nowhere/new.csv cannot be written" in failed.err


def test_what_is_no_file_is_written_to_and_not_replaced(shell: Shell, tmp_path: Path) -> None:
    shell("calve table create users --from-data users.csv")
    shell("calve table insert users --data users.csv")
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        shell("calve table query users --where 'id = 1' --output pipe.csv")
        assert os.read(reader, 1000) == b'"id","name","age"\n1,"Ada",36\n'
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_an_output_that_is_closed_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("calve table create users --from-data users.csv")
    monkeypatch.setattr("sys.stdout", None)
    assert "standard output is closed" in shell("calve table query users", code=3).err


def test_any_number_of_days_is_an_age(shell: Shell) -> None:
    shell("calve table create users --from-data users.csv")
    for _ in range(2):
        shell("calve table insert users --data users.csv")
    for days in ("1e12", "800000", "inf"):
        kept = shell(f"calve table expire-snapshots users --days {days} --json").json()
        assert kept["snapshot_ids"] == []
        left = shell(f"calve table remove-orphans users --days {days} --yes --json").json()
        assert left["files"] == []
    for line in ("expire-snapshots users", "remove-orphans users --yes"):
        assert "hint: 0 means" in shell(f"calve table {line} --days nan", code=3).err


def test_rows_are_counted_for_whoever_looks_on(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("calve table create users --from-data users.csv")
    rows = b"id,name,age\n1,Ada,40\n2,Alan,41\n3,Edsger,42\n"
    line = "calve table insert users --data - --format csv"
    assert "a second" not in shell(line, stdin=rows).err
    monkeypatch.setattr("calve.cli.progress._REDRAW_SECONDS", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    said = shell(line, stdin=rows).err
    assert "\r3 rows, " in said
    assert said.rpartition("\r")[2].startswith("users: 3 rows inserted")


def test_a_bar_is_full_only_when_the_rows_are_in(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shell("calve table create users --from-data users.csv")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for lines in (1, 30_000):
        (tmp_path / "users.csv").write_text("id,name,age\n" + "1,Ada,36\n" * lines, "utf-8")
        said = shell("calve table insert users --data users.csv").err
        drawn = [each for each in said.split("\r") if "%" in each]
        assert not [each for each in drawn if "100%" in each and f"{lines:,} rows" not in each]
        assert not [each for each in drawn if "  0%" not in each and " 0 rows" in each]
        assert [each for each in drawn if "100%" in each]


def test_rows_change(shell: Shell) -> None:
    shell("calve table create users --from-data users.csv")
    shell("calve table insert users --data users.csv")
    updated = shell("""calve table update users --assign 'age = age + 1' --where "name = 'Ada'" """)
    assert "1 row updated" in updated.err
    shell("calve table update users --assign age=1", code=2)
    shell("calve table update users --assign 'name = upper(name)' --all")
    shell("calve table add-column users 'a = \"b\"' string")
    shell('calve table update users --assign \'"a = ""b""" = name\' --all')
    would = shell("calve table delete users --where 'age < 30' --dry-run --json")
    assert would.json()["would_delete"] == 1
    shell("calve table delete users --where 'age < 30'")
    rows = b"id,name,age\n1,Ada,40\n9,Niklaus,60\n"
    upserted = shell("calve table upsert users --data - --key id --json", stdin=rows).json()
    assert (upserted["inserted_rows"], upserted["updated_rows"]) == (1, 1)
    asked = shell('calve sql "select id, name, age from users order by id" --json').json()
    assert [tuple(row.values()) for row in asked] == [
        (1, "Ada", 40), (3, "GRACE", 45), (9, "Niklaus", 60),
    ]  # fmt: skip


def test_branches_tags_and_the_way_back(shell: Shell) -> None:
    shell("calve table create users --from-data users.csv")
    shell("calve branch create users audit", code=3)
    shell("calve table insert users --data users.csv")
    shell("calve tag create users first")
    shell("calve branch create users audit")
    shell("calve table insert users --data users.csv --branch audit")
    count_of = 'calve sql "select count(*) as n from users{}" --json'
    assert shell(count_of.format("")).json() == [{"n": 3}]
    assert len(shell("calve table query users --branch audit --json").json()) == 6
    assert shell("calve branch list users --json").json()[0]["name"] == "audit"
    shell("calve branch publish users audit")
    assert shell(count_of.format("")).json() == [{"n": 6}]
    assert shell(count_of.format(" AT (TAG => 'first')")).json() == [{"n": 3}]
    later = shell(count_of.format(" AT (TIMESTAMP => '2999-01-01 10:00')"))
    assert later.json() == [{"n": 6}]
    assert "users as of 2999-01-01 10:00:00 UTC: snapshot " in later.err
    assert len(shell("calve table query users --tag first --json").json()) == 3
    snapshots = shell("calve table list-snapshots users --json").json()
    changes = shell(f"calve table changes users --from {snapshots[0]['id']} --json").json()
    assert len(changes["added"]) == 1
    assert changes["deleted"] == []
    shell("calve branch delete users audit", code=2)
    shell("calve branch delete users audit --yes")
    would = shell("calve table expire-snapshots users --days 0 --dry-run --json").json()
    assert would["snapshot_ids"] == []
    shell("calve tag delete users first --yes")
    gone = shell("calve table expire-snapshots users --days 0 --json").json()
    assert gone["snapshot_ids"] == [snapshots[0]["id"]]


def test_a_branch_can_be_published_after_old_snapshots_were_forgotten(shell: Shell) -> None:
    shell("calve table create users --from-data users.csv")
    shell("calve table insert users --data users.csv")
    shell("calve branch create users audit")
    for _ in range(2):
        shell("calve table insert users --data users.csv --branch audit")
    shell("calve table expire-snapshots users --days 0")
    shell("calve branch publish users audit")
    assert len(shell("calve table query users --json").json()) == 9
    gone = shell("calve table expire-snapshots users --days 0 --json").json()
    assert len(gone["snapshot_ids"]) == 2


def test_a_branch_has_the_columns_of_the_table(shell: Shell) -> None:
    shell("calve table create users --from-data users.csv")
    shell("calve table insert users --data users.csv")
    shell("calve branch create users audit")
    shell("calve table rename-column users name full_name")
    shell("calve table add-column users email string")
    asked = "calve table query users --branch audit --where \"full_name = 'Ada'\" --json"
    ada = {"id": 1, "full_name": "Ada", "age": 36, "email": None}
    assert shell(asked).json() == [ada]
    in_sql = "calve sql \"select * from users AT (BRANCH => 'audit') where id = 1\" --json"
    assert shell(in_sql).json() == [ada]
    shell("calve table delete users --branch audit --where \"full_name = 'Ada'\"")
    assert shell(asked).json() == []


def test_columns_and_partitions_change(shell: Shell) -> None:
    shell("calve table create users --schema schema.json --partition-by age")
    shell("calve table alter-column users age --type long --doc 'in years'")
    shell("calve table alter-column users id --optional")
    shell("calve table drop-column users age --yes", code=3)
    shell("calve table alter-partition users --drop age --add 'bucket(4, id)'")
    assert "would be dropped" in shell("calve table drop-column users age --dry-run").err
    would = shell("calve table drop-column users age --dry-run --json").json()
    assert would == {"table": "users", "would_drop": "age"}
    shell("calve table drop-column users age", code=2)
    shell("calve table drop-column users age --yes")
    described = shell("calve table describe users --json").json()
    assert [column["name"] for column in described["columns"]] == ["id", "name"]
    assert described["partitioned_by"] == ["bucket[4](id)"]
    shell("calve table rename users people")
    assert shell("calve table list").out.split() == ["TABLE", "people"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("users --schema nothing.json", 4),
        ("users --from-data nothing.csv", 4),
        ("users --from-data users.csv --partition-by nothing", 3),
        ("users --from-data users.csv --sort-by 'id down'", 3),
        ("Users --from-data users.csv", 3),
        ("users --from-data users.csv --property nothing", 2),
    ],
)
def test_a_table_that_cannot_be_makes_no_lake(
    shell: Shell, tmp_path: Path, line: str, code: int
) -> None:
    shell(f"calve table create {line}", code=code)
    assert not (tmp_path / "calve-data").exists()


def test_dropping_and_purging(shell: Shell, tmp_path: Path) -> None:
    shell("calve table create users --from-data users.csv")
    shell("calve table insert users --data users.csv")
    shell("calve table drop users", code=2)
    assert "would be deleted" in shell("calve table drop users --purge --dry-run").err
    assert len(shell("calve table query users --json").json()) == 3
    shell("calve table drop users --purge --yes")
    assert not [path for path in (tmp_path / "calve-data" / "users").rglob("*") if path.is_file()]
    shell("calve table query users", code=4)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("calve table query nothing", 4, "nothing"),
        ("calve table insert users --data nothing.csv", 4, "nothing.csv"),
        ("calve table insert users --data .", 2, "--lake"),
        ("calve table create users --schema schema.json", 5, "exists"),
        ("calve table create users", 2, "--schema"),
        ("calve table query users --where 'agee > 1'", 3, "age"),
        ("calve table query users --where 'age >'", 3, "hint"),
        ('calve table query users --where "name = \'a"', 3, "hint: every quote"),
        ("calve table query users --where \"name = '\udcff'\"", 3, "hint: write it in utf-8"),
        ("calve sql \"select '\udcff'\"", 3, "hint: write it in utf-8"),
        ("calve table query users --columns agee", 3, "age"),
        ("calve table query users --columns ''", 3, "no column is named"),
        ("calve table query users --snapshot 1", 4, "snapshot 1"),
        ("calve table query users --snapshot 1 --tag x", 2, "exclude"),
        ("calve table query users --timestamp yesterday", 3, "2024-01-01 10:00:00"),
        ("calve table query users --timestamp 2001-01-01", 4, "first"),
        ("calve table query users --timestamp 0001-01-01T00:00:00+05:00", 3, "is not a time"),
        ("calve table query users --tag x", 4, "tag"),
        ("calve table add-column users age int", 3, "age"),
        ("calve table add-column users extra number", 3, "number"),
        ("calve table add-column users _calve_offset long", 3, "reserved"),
        ("calve table rename-column users agee years", 3, "'age'"),
        ("calve table alter-column users age --type string", 3, "age"),
        ("calve table rollback users --snapshot 5", 4, "5"),
        ("calve table upsert users --data users.csv --key nme", 3, "name"),
        ("calve branch publish users audit", 4, "audit"),
        ("calve tag create users 'a\nb'", 3, "line breaks"),
        ("calve sql 'select * from userz'", 4, "users"),
        ("calve sql 'drop table users'", 3, "changes nothing"),
        ("calve table update users --assign age=1 --assign age=2 --all", 2, "two values"),
        ("calve table update users --assign age==1 --all", 2, "COLUMN=EXPRESSION"),
        ("calve table describe uesrs", 4, "no table 'uesrs' (did you mean 'users'?)"),
        ("calve sql \"select * from read_csv('users.csv')\"", 3, "read_csv"),
        ("calve table query ../users", 3, "name"),
    ],
)
def test_a_mistake_is_told_in_words_and_changes_nothing(
    shell: Shell, tmp_path: Path, line: str, code: int, words: str
) -> None:
    shell("calve table create users --schema schema.json")
    shell("calve table insert users --data users.csv")
    before = shell("calve table describe users --json").json()
    files = set(tmp_path.rglob("*"))
    failed = shell(line, code=code)
    assert words.lower() in failed.err.lower()
    assert shell("calve table describe users --json").json() == before
    assert set(tmp_path.rglob("*")) == files


@pytest.mark.parametrize(
    "line",
    [
        "delete users --where \"name = '\udcff'\"",
        "update users --assign \"name = '\udcff'\" --all",
        "update users --assign \"n\udcff = 'x'\" --all",
        "upsert users --data users.csv --key i\udcff",
        "create more --from-data users.csv --property a=\udcff",
        "create more --from-data users.csv --property a\udcff=b",
        "add-column users x\udcff string",
        "add-column users x string --doc \udcff",
        "rename users \udcff",
        "alter-partition users --add \udcff",
    ],
)
def test_bytes_that_are_no_text_are_refused_as_a_mistake(shell: Shell, line: str) -> None:
    """Python makes halves of characters of them, which nothing can write."""
    shell("calve table create users --schema schema.json")
    shell("calve table insert users --data users.csv")
    before = shell("calve table describe users --json").json()
    assert "hint: " in shell(f"calve table {line}", code=3).err
    assert shell("calve table describe users --json").json() == before
    assert "more" not in shell("calve table list").out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"id,name\n1,Ada\n2\n", "row"),
        (b"id,name,agee\n1,Ada,3\n", "agee"),
        (b"name,age\nAda,3\n", "id"),
        (b"id,name,age\n,Ada,3\n", "id"),
        (b"id,name,age\n1,Ada,old\n", "old"),
        (b"id,name,age\n1,\xff\xfe,3\n", "utf-8"),
        (b"", "empty"),
        (b"id,id,age\n1,1,3\n", "id"),
        (b"id,name,age\n1,Ada,99999999999\n", "99999999999"),
    ],
)
def test_bad_rows_are_refused_and_the_table_is_untouched(
    shell: Shell, tmp_path: Path, content: bytes, words: str
) -> None:
    shell("calve table create users --schema schema.json")
    (tmp_path / "bad.csv").write_bytes(content)
    failed = shell("calve table insert users --data bad.csv", code=3)
    assert words in failed.err.lower()
    assert "hint:" in failed.err
    assert shell("calve table describe users --json").json()["snapshot_id"] is None
    assert not list((tmp_path / "calve-data" / "users").rglob("*.parquet"))


def test_names_that_sql_would_stumble_over(shell: Shell, tmp_path: Path) -> None:
    names = ["select", 'say "hi"', "two words", "größe", "a.b", "it's", "日本", "%s"]
    row = dict.fromkeys(names, "x")
    (tmp_path / "odd.json").write_text(json.dumps([row]), "utf-8")
    shell("calve table create odd --from-data odd.json")
    shell("calve table insert odd --data odd.json")
    assert shell("calve table query odd --json").json() == [row]
    for name in names:
        quoted = '"' + name.replace('"', '""') + '"'
        where = shlex.quote(f"{quoted} = 'x'")
        assert len(shell(f"calve table query odd --where {where} --json").json()) == 1
        shell(f"calve table rename-column odd {shlex.quote(name)} {shlex.quote(name + '_')}")
    assert list(shell("calve table query odd --json").json()[0]) == [f"{name}_" for name in names]


def test_a_schema_comes_from_standard_input(shell: Shell, tmp_path: Path) -> None:
    written = json.dumps(SCHEMA).encode()
    shell("calve table create users --schema schema.json")
    shell("calve table create people --schema -", stdin=written)
    columns = shell("calve table describe people --json").json()["columns"]
    assert columns == shell("calve table describe users --json").json()["columns"]
    for broken in (b"", b"[]", b'{"columns": [{"name": "id"}]}'):
        refused = shell("calve table create more --schema -", code=3, stdin=broken).err
        assert "standard input: " in refused
        assert "hint: " in refused
    (tmp_path / "-").write_bytes(written)
    shell("calve table create dashed --schema ./-")


@pytest.mark.parametrize(
    ("mark", "said"), [(";", ";"), ("\t", "tab"), ("\t", "'\\t'"), ("|", "|"), (",", ",")]
)
def test_cells_may_be_separated_otherwise(
    shell: Shell, tmp_path: Path, mark: str, said: str
) -> None:
    (tmp_path / "other.csv").write_text(
        USERS.replace(",", mark).replace("Ada", f'"A{mark}da"'), "utf-8"
    )
    said = said if said.startswith("'") else f"'{said}'"
    shell(f"calve table create users --from-data other.csv --delimiter {said}")
    shell(f"calve table insert users --data other.csv --delimiter {said}")
    upserted = (tmp_path / "other.csv").read_bytes().replace(b"36", b"37")
    shell(f"calve table upsert users --data - --key id --delimiter {said}", stdin=upserted)
    rows = shell("calve table query users --where 'id < 3' --format ndjson").out.splitlines()
    assert sorted(json.loads(row)["age"] for row in rows) == [28, 37]
    assert any(json.loads(row)["name"] == f"A{mark}da" for row in rows)


def test_another_separator_is_recognised_and_its_option_named(shell: Shell, tmp_path: Path) -> None:
    shell("calve table create users --schema schema.json")
    for mark, said in ((";", "--delimiter ';'"), ("\t", "--delimiter 'tab'")):
        (tmp_path / "other.csv").write_text(USERS.replace(",", mark), "utf-8")
        assert said in shell("calve table insert users --data other.csv", code=3).err
        assert said in shell("calve table create more --from-data other.csv", code=3).err


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("insert users --data users.csv --delimiter ''", 3, "the word tab"),
        ("insert users --data users.csv --delimiter ab", 3, "the word tab"),
        ("insert users --data users.csv --delimiter é", 3, "the word tab"),
        ("insert users --data users.csv --delimiter '\n'", 3, "the word tab"),
        ("insert users --data users.csv --delimiter '\"'", 3, "quoted"),
        ("insert users --data users.csv --format json --delimiter ';'", 3, "only CSV"),
        ("upsert users --data users.csv --key id --delimiter ''", 3, "the word tab"),
        ("create more --schema schema.json --delimiter ';'", 2, "--from-data"),
    ],
)
def test_a_delimiter_that_is_none_is_refused(
    shell: Shell, line: str, code: int, words: str
) -> None:
    shell("calve table create users --schema schema.json")
    assert words in shell(f"calve table {line}", code=code).err


def test_ten_thousand_columns(shell: Shell, tmp_path: Path) -> None:
    row = {f"c{number}": number for number in range(10_000)}
    (tmp_path / "wide.json").write_text(json.dumps([row]), "utf-8")
    shell("calve table create wide --from-data wide.json")
    shell("calve table insert wide --data wide.json")
    found = shell("calve table query wide --where 'c9999 = 9999' --columns c0,c9999 --json")
    assert found.json() == [{"c0": 0, "c9999": 9999}]


def test_several_key_columns_are_named_as_other_columns_are(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('id,"a,b",n\n1,x,1\n')
    shell("calve table create t --from-data rows.csv")
    for keys, inserted in (("--key 'id,\"a,b\"'", 1), ("--key id --key '\"a,b\"'", 0)):
        changed = shell(f"calve table upsert t --data rows.csv --json {keys}").json()
        assert changed["inserted_rows"] == inserted, changed


def test_tables_say_that_they_do_not_ask_a_service(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALVE_SERVER", "grpc://127.0.0.1:1")
    shell("calve table create t --from-data users.csv")
    changed = shell("calve table delete t --where 'id = 3' --yes")
    assert "CALVE_SERVER is for topics" in changed.err
    assert len(shell("calve table query t --json").json()) == 0
