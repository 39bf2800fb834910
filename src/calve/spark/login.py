"""How Spark logs in to AWS: in a catalog's properties, or for the whole JVM where those fall short.

Iceberg takes keys for S3 and a role from the catalog. Keys for Glue, the login that a role is
assumed with, and the name of a profile it takes from the JVM alone. Values only; `shared_login`
gives them to a JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from calve.errors import InvalidSettings
from calve.settings import Settings, StorageSettings

_FACTORY: Final = "client.factory"
_PROVIDER: Final = "client.credentials-provider"
_TOKEN: Final = "s3.session-token"  # noqa: S105
_ROLE_SESSION: Final = "calve"
_LOGIN: Final = "logs in to AWS with"
_ADDRESS: Final = "reaches Glue at"
# What Java looks at before a profile, when it looks for the login to assume a role with.
_BEFORE_A_PROFILE: Final = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")


@dataclass(frozen=True, slots=True)
class JvmNeed:
    """What a lake needs of the JVM: system properties, secret in part; none for the machine's own.

    `subject` and `words` say it in an error; lakes may differ in subjects, but not within one.
    """

    subject: str
    words: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    shadows: tuple[str, ...] = ()


def signs_requests(settings: Settings) -> bool:
    """Whether requests to a REST catalog carry a signature of AWS's kind."""
    return settings.catalog.properties.get("rest.sigv4-enabled", "").lower() == "true"


def catalog_login(settings: Settings) -> dict[str, str]:
    """How Iceberg's AWS clients log in; without any of these, as the machine offers."""
    storage = settings.storage
    if storage.role_arn:
        return _role(storage)
    if keys := _keys(storage):
        key, secret = keys
        return {"s3.access-key-id": key, "s3.secret-access-key": secret, **_signing(settings, keys)}
    if storage.profile:
        name = "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider"
        return {_PROVIDER: name}
    return {}


def jvm_needs(settings: Settings) -> list[JvmNeed]:
    """What a lake on AWS needs of the JVM; nothing, if its catalog's properties say all."""
    given = {**settings.storage.properties, **settings.catalog.properties}
    if _PROVIDER in given or _FACTORY in given:
        return []
    return [need for need in (_login(settings, given), _glue_address(settings)) if need]


def _login(settings: Settings, given: Mapping[str, str]) -> JvmNeed | None:
    storage = settings.storage
    if keys := _keys(storage):
        if settings.catalog.type != "glue" and not storage.role_arn:
            return None
        key, secret = keys
        # Empty, a token takes back one that these keys do not go with.
        token = {"aws.sessionToken": given.get(_TOKEN, "")}
        properties = {"aws.accessKeyId": key, "aws.secretAccessKey": secret, **token}
        return JvmNeed(_LOGIN, f"the keys of {key}", properties)
    if storage.profile:
        shadows = _BEFORE_A_PROFILE if storage.role_arn else ()
        properties = {"aws.profile": storage.profile}
        return JvmNeed(_LOGIN, f"the profile {storage.profile}", properties, shadows)
    return JvmNeed(_LOGIN, "what the machine offers")


def _glue_address(settings: Settings) -> JvmNeed | None:
    """In a role Iceberg ignores `glue.endpoint`; without it, it goes where the JVM says."""
    if settings.catalog.type != "glue":
        return None
    uri = settings.catalog.uri
    if uri is None:
        return JvmNeed(_ADDRESS, "AWS's own address")
    if settings.storage.role_arn is None:
        return None
    return JvmNeed(_ADDRESS, str(uri), {"aws.endpointUrlGlue": uri.reveal()})


def _role(storage: StorageSettings) -> dict[str, str]:
    if storage.region is None:
        raise InvalidSettings(
            f"storage.region: Spark cannot assume {storage.role_arn} without a region",
            hint="write the region of the bucket, and of Glue",
        )
    return {
        _FACTORY: "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
        "client.assume-role.arn": str(storage.role_arn),
        "client.assume-role.region": storage.region,
        "client.assume-role.session-name": _ROLE_SESSION,
    }


def _keys(storage: StorageSettings) -> tuple[str, str] | None:
    if not (storage.access_key_id and storage.secret_access_key):
        return None
    return storage.access_key_id, storage.secret_access_key.reveal()


def _signing(settings: Settings, keys: tuple[str, str]) -> dict[str, str]:
    if not signs_requests(settings):
        return {}
    key, secret = keys
    token = settings.storage.properties.get(_TOKEN)
    return {
        "rest.access-key-id": key,
        "rest.secret-access-key": secret,
        **({"rest.session-token": token} if token else {}),
    }
