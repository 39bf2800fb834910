"""Writes the reference pages of the documentation from the code: settings, commands, errors, HTTP.

    .venv/bin/python scripts/reference.py

A page that no longer says what the code says fails a unit test; running this mends it.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Final, Literal, get_args, get_origin

import click
import msgspec

from calve import errors
from calve.cli.main import CALVE, ICEBERG_MANAGER, LazyGroup
from calve.cli.place import TokenOption
from calve.errors import EXIT_INTERRUPTED, EXIT_UNEXPECTED, EXIT_USAGE, CalveError
from calve.ingest.flight.actions import ACTIONS
from calve.ingest.flight.service import CALLS
from calve.ingest.http.openapi import MEANINGS as STATUS_MEANINGS
from calve.ingest.http.operation import Operation
from calve.ingest.http.otlp import OPERATIONS as OTLP
from calve.ingest.http.routes import OPERATIONS
from calve.ingest.otlp.grpc_server import SCOPE as OTLP_SCOPE
from calve.ingest.otlp.grpc_server import SERVICES
from calve.settings import LoadedSettings, Properties, Secret, SecretUrl, load_settings
from calve.settings.keys import KEYS, Key, value_of
from calve.settings.reference import MEANINGS
from calve.settings.render import shown

ROOT: Final = Path(__file__).resolve().parent.parent
DIRECTORY: Final = ROOT / "docs" / "reference"
SECURITY: Final = ROOT / "docs" / "operating" / "security.md"
TABLE_BEGINS: Final = "<!-- Written by scripts/reference.py from the code. -->"
TABLE_ENDS: Final = "<!-- The end of what scripts/reference.py writes. -->"
TOKENS: Final = {"open": "none needed", "any": "any"}

# Settings that are read and checked, but that nothing in this version acts on: a whole section by
# its name, or single keys. A unit test fails when the code begins to read one of them.
RESERVED: Final = ("pipeline.sink",)
SECTION_NOTES: Final = {
    "catalog": (
        "`sql` is SQLite or PostgreSQL, by `catalog.uri`. Which to take is in "
        "[choosing a catalog](../guides/choosing-a-catalog.md)."
    ),
    "catalog.pool": (
        "For a catalog on [PostgreSQL](../guides/catalog-postgresql.md), in Python; "
        "others take no notice."
    ),
    "storage": (
        "All but `dsn` is for [S3](../guides/store-s3.md) and "
        "[Glue](../guides/catalog-glue.md). With a REST catalog `dsn` has no default: the "
        "server chooses where tables lie."
    ),
    "retry": (
        "For the network between Python and a catalog; how far each kind of catalog follows it "
        "is in [choosing a catalog](../guides/choosing-a-catalog.md#retries-and-time-outs)."
    ),
    "ingest": (
        "For [`calve up`](../guides/running.md) and `lake.serve()`. `tls_cert` and `tls_key` come "
        "together. How a client meets the bounds is in "
        "[producing over Flight](../guides/producing-flight.md#limits)."
    ),
    "pipeline": (
        "For [the pipeline](../operating/pipeline.md). A topic may have bounds of its own."
    ),
    "state": (
        "SQLite for one machine, PostgreSQL or etcd for several: "
        "[choosing](../guides/choosing-a-state.md)."
    ),
    "log": "For programs that call `configure_logs`; see [logs](../operating/logs.md).",
}

SETTINGS_INTRO: Final = """\
Every key, with what it takes, its default and its meaning. Where values come from and which one
wins is in [configuration](../guides/configuration.md). `<data>` stands for the lake's
directory. A *secret* is masked wherever it is shown (of a URL, the password) and can also be
given as `<key>_file`, the path of a file that holds it."""
RESERVED_INTRO: Final = """\
*Reserved* keys are accepted and checked today, so that a configuration keeps its spelling, but
this version does nothing with them."""
COMMANDS_INTRO: Final = """\
Data goes to standard output, words to standard error. How a command ends is told by its [exit
code](errors.md). `calve --help`, `calve COMMAND --help` and `--version` answer without opening
anything."""
HTTP_INTRO: Final = """\
What the service offers over HTTP; [producing over HTTP](../guides/producing-http.md) shows how. The
version that runs tells the same at `/docs`, and for programs at `/openapi.json`. Errors are
`application/problem+json` with `type`, `title`, `status`, `detail`, and where there is more to say
`hint`, `context` and `retry_after_ms`. Besides what is listed, every request can meet these:"""
ERRORS_INTRO: Final = """\
Every error that Calve raises derives from `calve.CalveError`. Its class says what the caller
must do; the object carries `message`, `hint` (what to do, where there is something to do) and
`context` (facts for programs), and survives pickling. The classes are in `calve.errors`."""
ERRORS_END: Final = """\
An error is one message on standard error, with its hint, and no traceback; `-v` shows the
traceback of an unexpected one."""

_DATA: Final = "/data-directory"
_CACHE_DEFAULT: Final = "`~/.cache/calve`; macOS: `~/Library/Caches/calve`"
_KINDS: Final[tuple[tuple[type, str], ...]] = (
    (Properties, "names and values"),
    (SecretUrl, "URL, secret"),
    (Secret, "text, secret"),
    (Path, "path"),
    (bool, "`true` or `false`"),
    (int, "whole number"),
    (float, "number"),
    (str, "text"),
)


def main() -> None:
    for name, text in pages().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
        print(f"wrote {(DIRECTORY / name).relative_to(ROOT)}", file=sys.stderr)
    SECURITY.write_text(security_page(), encoding="utf-8")
    print(f"wrote the table of {SECURITY.relative_to(ROOT)}", file=sys.stderr)


def security_page() -> str:
    """The page, with the table of who may do what as the code has it."""
    before, _, rest = SECURITY.read_text(encoding="utf-8").partition(f"{TABLE_BEGINS}\n")
    _, _, after = rest.partition(TABLE_ENDS)
    rows = table(("door", "what", "token"), access())
    return "\n".join([f"{before}{TABLE_BEGINS}", *rows, f"{TABLE_ENDS}{after}"])


def access() -> list[tuple[str, str, str]]:
    """Every way to ask a service for something, and the scope of the token that it takes."""
    found = [("HTTP", f"`{each.method} {each.path}`", each.scope) for each in OPERATIONS]
    found += [("Flight", f"`{name}`", scope) for name, scope in CALLS.items()]
    found += [("Flight", f"`do_action {name}`", each.scope) for name, each in ACTIONS.items()]
    found += [("OTLP over HTTP", f"`{each.method} {each.path}`", each.scope) for each in OTLP]
    found += [("OTLP over gRPC", f"`{name}`", OTLP_SCOPE) for name in SERVICES]
    for words, command in commands().items():
        scopes = [each.scope for each in command.params if isinstance(each, TokenOption)]
        if words.startswith("calve "):
            found += [("command with `--server`", f"`{words}`", scope) for scope in scopes]
    return [(door, what, TOKENS.get(scope, f"`{scope}`")) for door, what, scope in found]


def pages() -> dict[str, str]:
    """Every generated page by its file name."""
    parts = {
        "settings.md": settings_page(),
        "commands.md": commands_page(),
        "errors.md": errors_page(),
        "http.md": http_page(),
    }
    note = "<!-- Written by scripts/reference.py from the code. Edit the code, then run it. -->"
    return {name: "\n".join([note, "", *lines]) + "\n" for name, lines in parts.items()}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}")
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def settings_page() -> list[str]:
    loaded = load_settings(flags={"data": _DATA}, environ={}, directory=Path("/"))
    sections: dict[str, list[Key]] = {}
    for key in KEYS.values():
        sections.setdefault(key.name.rpartition(".")[0], []).append(key)
    lines = [
        "# Settings",
        "",
        SETTINGS_INTRO,
        "",
        RESERVED_INTRO,
    ]
    for section, keys in sections.items():
        lines += ["", f"## `[{section}]`" if section else "## Top level", ""]
        if note := SECTION_NOTES.get(section):
            lines += [note, ""]
        lines += table(
            ("key", "takes", "default", "meaning"),
            [
                (f"`{key.name}`", takes(key.kind), default(key, loaded), meaning(key))
                for key in keys
            ],
        )
    return lines


def takes(kind: object) -> str:
    """What a setting accepts, in words."""
    if get_origin(kind) is Annotated:
        base, *notes = get_args(kind)
        return takes(base) + "".join(bounds(n) for n in notes if isinstance(n, msgspec.Meta))
    if isinstance(kind, UnionType):
        return takes(next(member for member in get_args(kind) if member is not NoneType))
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    assert isinstance(kind, type)
    return next(words for known, words in _KINDS if issubclass(kind, known))


def bounds(meta: msgspec.Meta) -> str:
    if meta.pattern is not None:
        return f" like `{meta.pattern}`"
    if meta.le is not None:
        return f", {meta.ge} to {meta.le}"
    return f", at least {meta.ge}"


def default(key: Key, loaded: LoadedSettings) -> str:
    if key.name == "cache":
        return _CACHE_DEFAULT
    value = key.default if key.name == "data" else value_of(loaded.settings, key.name)
    if value is None or value == "" or value == Properties():
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    text = str(shown(value)).replace(_DATA, "<data>")
    return f"`{text}`"


def meaning(key: Key) -> str:
    return MEANINGS[key.name] + (" *(reserved)*" if is_reserved(key.name) else "")


def is_reserved(name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in RESERVED)


def commands() -> dict[str, click.Command]:
    """Every command of both programs by the words that call it."""
    found: dict[str, click.Command] = {}
    for program, entries in (("calve", CALVE), ("iceberg-manager", ICEBERG_MANAGER)):
        group = LazyGroup(entries, program)
        found |= leaves(group, program)
    return found


def leaves(command: click.Command, words: str) -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {words: command}
    context = click.Context(command)
    below: dict[str, click.Command] = {}
    for name in command.list_commands(context):
        each = command.get_command(context, name)
        assert each is not None
        below |= leaves(each, f"{words} {name}")
    return below


def commands_page() -> list[str]:
    found = commands()
    spelled = [{spelling(option) for option in options(command)} for command in found.values()]
    # In the few commands whose --data are rows, the lake's directory is another option.
    everywhere = set.intersection(*(each for each in spelled if "--data, --lake DIR" in each))
    shared = [o for o in options(next(iter(found.values()))) if spelling(o) in everywhere]
    lines = [
        "# Commands",
        "",
        COMMANDS_INTRO,
        "",
        "Every command takes these options:",
        "",
        *options_table(shared),
    ]
    for words, command in found.items():
        if words.startswith("iceberg-manager "):
            lines += ["", f"## {words}", "", same_as(words, found)]
            continue
        own = [option for option in options(command) if spelling(option) not in everywhere]
        lines += ["", f"## {words}", "", *help_lines(command)]
        lines += ["", "```text", usage(words, command), "```"]
        lines += ["", *options_table(own)] if own else []
    return lines


def same_as(words: str, found: Mapping[str, click.Command]) -> str:
    """Where the command that `iceberg-manager` shares with `calve` is described."""
    _, *verbs = words.split()
    whole = " ".join(("calve", *verbs))
    name = whole if whole in found else " ".join(("calve table", *verbs))
    return f"The same as [`{name}`](#{name.replace(' ', '-')})."


def options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


def spelling(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    return ", ".join(option.opts) + value


def options_table(listed: Sequence[click.Option]) -> Iterator[str]:
    rows = [(f"`{spelling(each)}`", (each.help or "") + repeated(each)) for each in listed]
    return table(("option", "meaning"), rows)


def repeated(option: click.Option) -> str:
    return " Can be given more than once." if option.multiple else ""


def usage(words: str, command: click.Command) -> str:
    arguments = [p.metavar or p.human_readable_name for p in command.params if is_argument(p)]
    return " ".join([words, "[OPTIONS]", *arguments])


def is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def help_lines(command: click.Command) -> list[str]:
    """The help text; what click would not wrap, which is an example, as code."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        text = paragraph.removeprefix("\b\n")
        example = text.partition("Example: ")[2] if text != paragraph else ""
        lines += ["", f"Example: `{example}`"] if example else ["", text.replace("\n", " ")]
    return lines[1:]


def http_page() -> list[str]:
    always = [(str(status), STATUS_MEANINGS[status]) for status in (403, 500, 503)]
    lines = ["# HTTP", "", HTTP_INTRO, "", *table(("status", "means"), always)]
    for operation in OPERATIONS:
        lines += ["", f"## {operation.method} {operation.path}", "", f"{operation.summary}."]
        lines += ["", operation.tells] if operation.tells else []
        lines += ["", *table(("part", "means"), list(_http_parts(operation)))]
    return lines


def _http_parts(operation: Operation) -> Iterator[tuple[str, str]]:
    for parameter in operation.parameters:
        yield f"{parameter.place} `{parameter.name}`", parameter.meaning
    for content in operation.body:
        yield "body", f"`{content.media_type}`{_form(content.form)}"
    for answer in operation.answers:
        forms = "; ".join(f"`{each.media_type}`{_form(each.form)}" for each in answer.contents)
        yield str(answer.status), f"{answer.meaning}: {forms}"
    for status in sorted(operation.problems):
        yield str(status), STATUS_MEANINGS[status]


def _form(form: object) -> str:
    name = getattr(form, "__name__", "")
    fields = ", ".join(
        [field.name for field in dataclasses.fields(form)]
        if dataclasses.is_dataclass(form)
        else getattr(form, "__struct_fields__", ())
    )
    return f" {name}: {fields}" if fields else ""


def errors_page() -> list[str]:
    return [
        "# Errors and exit codes",
        "",
        ERRORS_INTRO,
        "",
        *table(
            ("class", "what to do", "exit code", "HTTP status"),
            [
                (f"`{kind.__name__}`", what, str(kind.exit_code), str(kind.http_status))
                for kind, what in error_classes().items()
            ],
        ),
        "",
        "The HTTP status is what the service answers.",
        "",
        "## Exit codes",
        "",
        "Of `calve` and `iceberg-manager` alike.",
        "",
        *table(("code", "means"), [(str(code), what) for code, what in exit_codes().items()]),
        "",
        ERRORS_END,
    ]


def error_classes() -> Mapping[type[CalveError], str]:
    """Every class in the order of the tree in the module's docstring, with its words there."""
    found: dict[type[CalveError], str] = {CalveError: "any of them"}
    for line in (errors.__doc__ or "").splitlines():
        _, drawn, rest = line.partition("── ")
        if drawn:
            name, _, what = rest.partition(" ")
            found[getattr(errors, name)] = what.strip()
    return found


def exit_codes() -> dict[int, str]:
    named: dict[int, list[str]] = {}
    for kind in error_classes():
        if kind is not CalveError:
            named.setdefault(kind.exit_code, []).append(f"`{kind.__name__}`")
    meanings = {code: " or ".join(kinds) for code, kinds in sorted(named.items())}
    others = meanings.pop(EXIT_UNEXPECTED, "")
    unexpected = "unexpected: a defect in Calve" + (f", or {others}" if others else "")
    first = {0: "done", EXIT_UNEXPECTED: unexpected, EXIT_USAGE: "wrong usage of the command line"}
    return first | meanings | {EXIT_INTERRUPTED: "interrupted"}


if __name__ == "__main__":
    main()
