"""Files in S3 whose credentials end and are renewed, as PyIceberg opens them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from calve.settings import Properties as OwnProperties
from calve.settings import Secret, StorageSettings
from calve.tables.stores.s3 import (
    KEY,
    OWN_TOKEN,
    PROFILE,
    ROLE,
    SCHEME,
    SECRET,
    TOKEN,
    aws,
    frozen_credentials,
)

if TYPE_CHECKING:
    from boto3 import Session


class RenewingFileIO(PyArrowFileIO):
    """Opens each file with credentials that are valid now.

    A single file that is open for longer than its credentials live cannot be saved.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._given = properties
        self._lock = threading.Lock()
        self._stores: dict[str | None, FileSystem] = {}
        self._credentials: object = None
        self._session: Session | None = None
        # A catalog that hands out credentials for a table knows better than our own settings.
        if properties.get(TOKEN) == properties.get(OWN_TOKEN):
            self._session = _session(properties)
            self._plain = self.fs_by_scheme
            self.fs_by_scheme = self._valid_store

    def __reduce__(self) -> tuple[type[RenewingFileIO], tuple[Properties]]:
        return RenewingFileIO, (self._given,)

    def own_credentials(self) -> tuple[str, str, str | None] | None:
        """Key, secret and token that are valid now; None where the catalog hands them out."""
        if self._session is None:
            return None
        held = aws().credentials_of(self._session, purpose="open files in S3 with")
        return frozen_credentials(held)

    def _valid_store(self, scheme: str, netloc: str | None = None) -> FileSystem:
        if scheme != SCHEME:
            return self._plain(scheme, netloc)
        held = aws().credentials_of(self._session, purpose="open files in S3 with")
        credentials = held.get_frozen_credentials()
        with self._lock:
            if credentials != self._credentials:
                self._credentials = credentials
                self._stores.clear()
                self.properties = {
                    **self._given,
                    KEY: credentials.access_key,
                    SECRET: credentials.secret_key,
                    TOKEN: credentials.token or "",
                }
            if netloc not in self._stores:
                self._stores[netloc] = self._initialize_fs(scheme, netloc)
            return self._stores[netloc]


def _session(properties: Properties) -> Session:
    secret = properties.get(SECRET)
    session: Session = aws().aws_session(
        StorageSettings(
            region=properties.get("s3.region"),
            access_key_id=properties.get(KEY),
            secret_access_key=Secret(secret) if secret else None,
            profile=properties.get(PROFILE),
            role_arn=properties.get(ROLE),
            properties=OwnProperties({TOKEN: own} if (own := properties.get(OWN_TOKEN)) else {}),
        )
    )
    return session
