"""The store `s3://`: S3 and everything that speaks its protocol.

Keys in the settings, or what the machine offers, go to Arrow's own S3 client, which renews an
instance's or a container's credentials itself. A profile or a role goes through AWS's session
instead, whose temporary credentials are taken anew for each file once they have changed.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Final

from calve.parts import load_part
from calve.settings import StorageSettings

if TYPE_CHECKING:
    from botocore.credentials import Credentials

SCHEME: Final = "s3"

KEY: Final = "s3.access-key-id"
SECRET: Final = "s3.secret-access-key"  # noqa: S105
TOKEN: Final = "s3.session-token"  # noqa: S105
PROFILE: Final = "calve.s3.profile"
OWN_TOKEN: Final = "calve.s3.session-token"  # noqa: S105
ROLE: Final = "calve.s3.role-arn"
_FILE_IO: Final = "calve.tables.stores.s3_files.RenewingFileIO"
_TIMEOUTS: Final = {"s3.connect-timeout": "5", "s3.request-timeout": "30"}


def store_properties(storage: StorageSettings) -> dict[str, str]:
    """What PyIceberg needs to open files in the store."""
    given = {
        "s3.region": storage.region,
        "s3.endpoint": storage.endpoint,
        KEY: storage.access_key_id,
        SECRET: storage.secret_access_key and storage.secret_access_key.reveal(),
        "s3.force-virtual-addressing": "false" if storage.path_style else "true",
        PROFILE: storage.profile,
        ROLE: storage.role_arn,
        OWN_TOKEN: storage.properties.get(TOKEN),
    }
    properties = _TIMEOUTS | {key: value for key, value in given.items() if value}
    if storage.profile or storage.role_arn:
        properties["py-io-impl"] = _FILE_IO
    return properties


def machine_credentials(storage: StorageSettings) -> tuple[str, str, str | None] | None:
    """What the machine offers: environment, container or instance. Needs the part `aws`."""
    held = aws().aws_session(storage).get_credentials()
    return None if held is None else frozen_credentials(held)


def frozen_credentials(held: Credentials) -> tuple[str, str, str | None]:
    frozen = held.get_frozen_credentials()
    return frozen.access_key, frozen.secret_key, frozen.token


def aws() -> ModuleType:
    return load_part("aws", "calve.tables.aws")
