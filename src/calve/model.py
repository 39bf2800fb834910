"""The names that everyone uses: a table's name, its parts, and what is refused.

Names are validated here, once, at the edge. The alphabet is strict because names become Iceberg
namespaces, directories and SQL: a name with a dot or a slash in it would let one tenant reach
another's tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from calve.errors import InvalidRequest

DEFAULT_TENANT: Final = "default"
DEFAULT_DATASET: Final = "default"

_PART: Final = re.compile(r"[a-z](?:[a-z0-9]|_(?=[a-z0-9])){0,62}", re.ASCII)
DEAD_LETTERS_SUFFIX: Final = "__dead_letters"
_PART_RULE: Final = (
    "a part of a name is 1 to 63 of a-z, 0-9 and _, begins with a letter, "
    "has no double underscore and does not end in one"
)


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """`tenant.dataset.name`. Topics and tables share these names.

    `name` may end in `__dead_letters`: such a table is Calve's own, and no topic has that name.
    """

    tenant: str
    dataset: str
    name: str

    def __post_init__(self) -> None:
        for part in (self.tenant, self.dataset, self.name.removesuffix(DEAD_LETTERS_SUFFIX)):
            if not _PART.fullmatch(part):
                raise InvalidRequest(
                    f"{part!r} is not a valid part of a table name", hint=_PART_RULE
                )

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `tenant.dataset.name`, or `name` for one of the default dataset."""
        given: object = text
        parts = given.split(".") if isinstance(given, str) else ()
        if len(parts) == 1:
            return cls(DEFAULT_TENANT, DEFAULT_DATASET, parts[0])
        if len(parts) == 3:
            return cls(*parts)
        raise InvalidRequest(
            f"{text!r} is not a table name",
            hint="write tenant.dataset.name, or a short name for default.default.name",
        )

    @classmethod
    def parse_new(cls, text: str) -> TableName:
        """Read the name of something that a user makes: not one that only Calve gives."""
        return cls.parse(text).by_user()

    def by_user(self) -> TableName:
        if self.is_dead_letters:
            raise InvalidRequest(
                f"{self} is the name of a table of dead letters, which Calve makes itself",
                hint="choose another name; no part of it has a double underscore",
            )
        return self

    @property
    def namespace(self) -> tuple[str, str]:
        return (self.tenant, self.dataset)

    @property
    def is_dead_letters(self) -> bool:
        """Whether it is the table of what a topic set aside."""
        return self.name.endswith(DEAD_LETTERS_SUFFIX)

    @property
    def dead_letters(self) -> TableName:
        """The table of what a topic of this name sets aside."""
        assert not self.is_dead_letters
        return TableName(self.tenant, self.dataset, self.name + DEAD_LETTERS_SUFFIX)

    @property
    def topic(self) -> TableName:
        """The topic whose table it is, or whose dead letters."""
        return TableName(self.tenant, self.dataset, self.name.removesuffix(DEAD_LETTERS_SUFFIX))

    @property
    def in_default_dataset(self) -> bool:
        return self.namespace == (DEFAULT_TENANT, DEFAULT_DATASET)

    @property
    def full(self) -> str:
        """With all its parts, whatever they are: the same to everybody."""
        return f"{self.tenant}.{self.dataset}.{self.name}"

    def __str__(self) -> str:
        return self.name if self.in_default_dataset else self.full
