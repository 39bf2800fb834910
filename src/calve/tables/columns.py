"""Which names a column may have.

Any text works, with quotes, spaces or the words of SQL in it, except what would break a table: a
name that Calve or Iceberg uses itself, and one that differs from another in case only.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable
from typing import Final

from calve.errors import InvalidRequest

OWN_PREFIX: Final = "_calve_"
PARTITION: Final = f"{OWN_PREFIX}partition"
OFFSET: Final = f"{OWN_PREFIX}offset"
# Spark adds these columns to every Iceberg table and cannot read one that has them already.
ICEBERG_COLUMNS: Final = frozenset(
    {
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
    }
)
NAME_CHARACTERS_MAX: Final = 1024
# Control characters, and halves of characters that no encoding can write.
_UNWRITABLE: Final = frozenset({"Cc", "Cs"})


def check_columns(names: Iterable[str], *, kept: Collection[str] = ()) -> None:
    """Refuse column names that a table cannot have; those that it keeps may be Calve's own."""
    known = list(names)
    for name in known:
        if is_reserved(name) and name not in kept:
            raise InvalidRequest(
                f"column {name!r} has a reserved name",
                hint=f"names that begin with {OWN_PREFIX} are Calve's, and "
                f"{', '.join(sorted(ICEBERG_COLUMNS))} are Iceberg's; choose another",
                context={"column": name},
            )
    check_names(known, what="column")


def is_reserved(name: str) -> bool:
    folded = name.casefold()
    return folded.startswith(OWN_PREFIX) or folded in ICEBERG_COLUMNS


def check_names(names: Iterable[str], *, what: str) -> None:
    """Refuse names of one struct that are empty, unwritable or the same."""
    seen: dict[str, str] = {}
    for place, name in enumerate(names, 1):
        _check_text(name, what=what, place=place)
        earlier = seen.setdefault(name.casefold(), name)
        if len(seen) < place:
            raise _repeated(name, earlier, what=what)


def is_writable(name: str) -> bool:
    """Whether a name stays on its line, and can be encoded."""
    return name.isprintable() or all(unicodedata.category(c) not in _UNWRITABLE for c in name)


def _check_text(name: str, *, what: str, place: int) -> None:
    if not name.strip():
        raise InvalidRequest(f"{what} {place} has no name", hint=f"give every {what} a name")
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidRequest(
            f"{what} {place} has a name of {len(name):,} characters, beginning {name[:40]!r}",
            hint=f"a name has at most {NAME_CHARACTERS_MAX:,}",
        )
    if not is_writable(name):
        raise InvalidRequest(
            f"{what} {name!r} has a control character in its name",
            hint="line breaks, tabs and the like cannot be written in SQL; take them out",
            context={what: name},
        )


def _repeated(name: str, earlier: str, *, what: str) -> InvalidRequest:
    if name == earlier:
        return InvalidRequest(
            f"{what} {name!r} is there twice",
            hint=f"every {what} needs a name of its own",
            context={what: name},
        )
    return InvalidRequest(
        f"{what}s {earlier!r} and {name!r} differ in case only",
        hint="Spark does not tell upper from lower case in names; rename one of them",
        context={what: name},
    )
