"""The rules of this house that no linter knows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "calve"
MODULES = sorted(SOURCE.rglob("*.py"))

# Each heavy library has one home; DuckDB also says what a condition means.
HOMES = {
    "sqlglot": ("condition",),
    "pyiceberg": ("tables",),
    "sqlalchemy": ("tables",),
    "pyspark": ("spark",),
    "py4j": ("spark",),
    "duckdb": ("query", "condition/binding.py"),
    "fsspec": ("tables",),
    "boto3": ("tables",),
    "botocore": ("tables",),
    "psycopg": ("tables", "state", "postgres.py"),
    "requests": ("tables",),
    "tenacity": ("tables", "retry.py"),
    "structlog": ("log.py",),
    "yaml": ("settings",),
    "cryptography": ("ingest/authority.py",),
    "click": ("cli",),
    "starlette": ("ingest/http",),
    "uvicorn": ("ingest/http",),
    "websockets": ("ingest/http",),
    "google": ("ingest/otlp", "ingest/http/otlp.py"),
    "grpc": ("ingest/otlp", "ingest/http/otlp.py"),
    "opentelemetry": ("ingest/otlp",),
    "ptars": ("ingest/otlp/messages.py",),
}
# Settings are values: these alone may look at the environment, the second because it is Java's own.
READS_ENVIRONMENT = {"settings/load.py", "spark/java.py", "spark/session.py"}
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc"}
LINES_MAX = 500
FUNCTION_LINES_MAX = 60
# Methods that a library's class has and ours overrides.
NAMED_BY_LIBRARIES = {
    *("get_command", "get_backoff_time", "get_retry_after"),
    *("get_flight_info", "get_schema"),
}
NAMED_BY_USERS = {"get_current_snapshot", "get_topic_stats"}
# A commit asks the table what happened, whatever the exception was. The log's two act for many
# callers at once: what is wrong with one must not reach the others. Nor must a user's callback,
# nor one topic of a pipeline's.
# A Spark task answers for each of its pieces.
BROAD = {
    "pipeline/task.py",
    *("client/delivery.py", "ingest/http/answers.py", "ingest/http/app.py"),
    "ingest/otlp/grpc_server.py",
    *("cli/main.py", "tables/outcome.py", "tables/translate.py"),
    *("wal/group.py", "wal/pending.py"),
    *("pipeline/crew.py",),
}
# What a session that is elsewhere does not have, as a Spark Connect one: contexts, RDDs, the JVM.
NOT_REMOTE = {
    *("sparkContext", "SparkContext", "rdd", "RDD", "parallelize", "broadcast", "accumulator"),
    *("_sc", "_jsc", "_jvm", "_jdf", "_jsparkSession", "_jspark", "_gateway", "java_gateway"),
}


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imported(module: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def type_checking_only(module: ast.Module) -> set[str]:
    blocks = [
        n for n in module.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"
    ]
    return set().union(*(imported(ast.Module(block.body, [])) for block in blocks))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_opens_with_what_it_holds(path: Path) -> None:
    docstring = ast.get_docstring(tree(path))
    assert docstring
    assert docstring.strip().splitlines()[0].endswith((".", ":"))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_is_named_for_what_it_holds_and_stays_small(path: Path) -> None:
    assert path.stem not in NO_NAMES
    assert len(path.read_text("utf-8").splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_heavy_library_is_imported_at_home_only(path: Path) -> None:
    module = tree(path)
    for library in (imported(module) - type_checking_only(module)) & set(HOMES):
        homes = HOMES[library]
        assert any(
            relative(path) == home or relative(path).startswith(f"{home}/") for home in homes
        ), library


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_functions_stay_small(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, node.name
            known = NAMED_BY_LIBRARIES | NAMED_BY_USERS
            assert not node.name.startswith("get_") or node.name in known, node.name


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_settings_read_the_environment(path: Path) -> None:
    used = {ast.unparse(node) for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
    if used & {"os.environ", "os.getenv"}:
        assert relative(path) in READS_ENVIRONMENT


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_exceptions_are_caught_broadly_at_the_front_doors_only(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler) and relative(path) not in BROAD:
            assert node.type is not None
            caught = ast.unparse(node.type)
            reraises = any(isinstance(n, ast.Raise) and n.exc is None for n in node.body)
            assert "Exception" not in caught.split(".")[-1:] or reraises
            assert caught != "BaseException" or reraises


def beyond_dataframes(module: ast.Module) -> set[str]:
    """What of Spark a module names that is not of its DataFrames."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            found |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("pyspark"):
            found |= set(str(node.module).split(".")) | {each.name for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {part for each in node.names for part in each.name.split(".")}
    return found & (NOT_REMOTE | {"py4j"})


PIPELINE = [path for path in MODULES if path.is_relative_to(SOURCE / "pipeline")]


@pytest.mark.parametrize("path", PIPELINE, ids=relative)
def test_the_pipeline_uses_only_the_dataframe_api(path: Path) -> None:
    assert beyond_dataframes(tree(path)) == set()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("session.sparkContext.parallelize([1])", {"sparkContext", "parallelize"}),
        ("frame.rdd.map(f)", {"rdd"}),
        ("session._jvm.java.lang.System.gc()", {"_jvm"}),
        ("getattr(session, '_jsparkSession')", {"_jsparkSession"}),
        ("from pyspark import SparkContext", {"SparkContext"}),
        ("from pyspark.java_gateway import launch_gateway", {"java_gateway"}),
        ("import py4j.protocol", {"py4j"}),
        ("session.range(3).mapInArrow(f, 'a int').toArrow()", set()),
        ("from pyspark.sql import SparkSession", set()),
    ],
)
def test_what_is_beyond_the_dataframe_api_is_found(code: str, found: set[str]) -> None:
    assert beyond_dataframes(ast.parse(code)) == found


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_window_holds_only_imports_and_names(path: Path) -> None:
    if path.name != "__init__.py" or path.parent == SOURCE:
        return
    allowed = (ast.ImportFrom, ast.Import, ast.Assign, ast.Expr)
    assert all(isinstance(node, allowed) for node in tree(path).body)


def test_nothing_of_this_machine_and_no_registry_is_in_the_lock() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert "find-links" not in lock
    assert "--hash=sha256:" in lock
