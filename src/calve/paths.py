"""Where everything lies: the data directory, and each table's place in the warehouse.

    <data>/
      _calve/            Calve's own: catalog, write-ahead log, state, logs
      users/             table default.default.users
      acme__/sales/orders/   table acme.sales.orders

No two of these can meet: a table's name begins with a letter and has no double underscore, so
neither `_calve` nor a tenant's directory, which ends in one, is ever a table's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calve.model import TableName

OWN_DIRECTORY: Final = "_calve"

_FILE_SCHEME: Final = "file://"


@dataclass(frozen=True, slots=True)
class DataLayout:
    """The data directory of one lake."""

    root: Path

    @property
    def own(self) -> Path:
        return self.root / OWN_DIRECTORY

    @property
    def catalog(self) -> Path:
        return self.own / "catalog.db"

    @property
    def wal(self) -> Path:
        return self.own / "wal"

    @property
    def state(self) -> Path:
        return self.own / "state.db"

    @property
    def service(self) -> Path:
        """Where a running service says how it is reached."""
        return self.own / "service"

    @property
    def audit(self) -> Path:
        """Where administrative actions are recorded."""
        return self.own / "audit"

    @property
    def tls(self) -> Path:
        """What `calve tls init` makes, unless told otherwise."""
        return self.own / "tls"

    @property
    def spark_log(self) -> Path:
        return self.own / "logs" / "spark.log"


def directory_url(path: Path) -> str:
    """A directory as the root of a store; not percent-encoded, as Iceberg's libraries expect."""
    return f"{_FILE_SCHEME}{path}"


def local_directory(url: str) -> Path | None:
    """The directory behind a `file://` URL, or None for another kind of store."""
    return Path(url.removeprefix(_FILE_SCHEME)) if url.startswith(_FILE_SCHEME) else None


def table_location(warehouse: str, name: TableName) -> str:
    """The directory of a table below `warehouse`, a URL such as `file:///lake` or `s3://b/p/`."""
    base = warehouse.rstrip("/")
    if name.in_default_dataset:
        return f"{base}/{name.name}"
    return f"{base}/{name.tenant}__/{name.dataset}/{name.name}"


def make_private(directory: Path) -> None:
    """Make a directory for its owner alone, and so those above it that are not there yet.

    FileExistsError or NotADirectoryError if something else is in the way.
    """
    if not directory.is_dir():
        make_private(directory.parent)
        directory.mkdir(0o700, exist_ok=True)


def private_mode(directory: Path) -> int:
    """The mode of a new file there: for its owner alone, and a group that may write there."""
    return 0o660 if directory.stat().st_mode & 0o020 else 0o600
