"""The store `s3://`: S3 and everything that speaks its protocol.

Keys in the settings, or what the machine offers, go to Arrow's own S3 client, which renews an
instance's or a container's credentials itself. A profile or a role goes through AWS's session
instead, whose temporary credentials are taken anew for each file once they have changed.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import TYPE_CHECKING, Final

from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from calve.parts import load_part
from calve.settings import Properties as OwnProperties
from calve.settings import Secret, StorageSettings

if TYPE_CHECKING:
    from boto3 import Session
    from botocore.credentials import Credentials

SCHEME: Final = "s3"

_KEY: Final = "s3.access-key-id"
_SECRET: Final = "s3.secret-access-key"  # noqa: S105
_TOKEN: Final = "s3.session-token"  # noqa: S105
_PROFILE: Final = "calve.s3.profile"
_OWN_TOKEN: Final = "calve.s3.session-token"  # noqa: S105
_ROLE: Final = "calve.s3.role-arn"
_TIMEOUTS: Final = {"s3.connect-timeout": "5", "s3.request-timeout": "30"}


def store_properties(storage: StorageSettings) -> dict[str, str]:
    """What PyIceberg needs to open files in the store."""
    given = {
        "s3.region": storage.region,
        "s3.endpoint": storage.endpoint,
        _KEY: storage.access_key_id,
        _SECRET: storage.secret_access_key and storage.secret_access_key.reveal(),
        "s3.force-virtual-addressing": "false" if storage.path_style else "true",
        _PROFILE: storage.profile,
        _ROLE: storage.role_arn,
        _OWN_TOKEN: storage.properties.get(_TOKEN),
    }
    properties = _TIMEOUTS | {key: value for key, value in given.items() if value}
    if storage.profile or storage.role_arn:
        properties["py-io-impl"] = f"{RenewingFileIO.__module__}.{RenewingFileIO.__name__}"
    return properties


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
        if properties.get(_TOKEN) == properties.get(_OWN_TOKEN):
            self._session = _session(properties)
            self._plain = self.fs_by_scheme
            self.fs_by_scheme = self._valid_store

    def __reduce__(self) -> tuple[type[RenewingFileIO], tuple[Properties]]:
        return RenewingFileIO, (self._given,)

    def own_credentials(self) -> tuple[str, str, str | None] | None:
        """Key, secret and token that are valid now; None where the catalog hands them out."""
        if self._session is None:
            return None
        held = _aws().credentials_of(self._session, purpose="open files in S3 with")
        return _frozen(held)

    def _valid_store(self, scheme: str, netloc: str | None = None) -> FileSystem:
        if scheme != SCHEME:
            return self._plain(scheme, netloc)
        held = _aws().credentials_of(self._session, purpose="open files in S3 with")
        credentials = held.get_frozen_credentials()
        with self._lock:
            if credentials != self._credentials:
                self._credentials = credentials
                self._stores.clear()
                self.properties = {
                    **self._given,
                    _KEY: credentials.access_key,
                    _SECRET: credentials.secret_key,
                    _TOKEN: credentials.token or "",
                }
            if netloc not in self._stores:
                self._stores[netloc] = self._initialize_fs(scheme, netloc)
            return self._stores[netloc]


def machine_credentials(storage: StorageSettings) -> tuple[str, str, str | None] | None:
    """What the machine offers: environment, container or instance. Needs the part `aws`."""
    held = _aws().aws_session(storage).get_credentials()
    return None if held is None else _frozen(held)


def _frozen(held: Credentials) -> tuple[str, str, str | None]:
    frozen = held.get_frozen_credentials()
    return frozen.access_key, frozen.secret_key, frozen.token


def _aws() -> ModuleType:
    return load_part("aws", "calve.tables.aws")


def _session(properties: Properties) -> Session:
    secret = properties.get(_SECRET)
    session: Session = _aws().aws_session(
        StorageSettings(
            region=properties.get("s3.region"),
            access_key_id=properties.get(_KEY),
            secret_access_key=Secret(secret) if secret else None,
            profile=properties.get(_PROFILE),
            role_arn=properties.get(_ROLE),
            properties=OwnProperties({_TOKEN: own} if (own := properties.get(_OWN_TOKEN)) else {}),
        )
    )
    return session
