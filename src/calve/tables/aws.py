"""Sessions with AWS from settings: keys, a profile, a role to assume, or what the machine offers.

Temporary credentials are renewed by the session itself. Needs the part `aws`.
"""

from __future__ import annotations

from typing import Final

import boto3
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    Credentials,
    DeferredRefreshableCredentials,
)
from botocore.session import Session as BotocoreSession

from calve.errors import Denied
from calve.settings import RetrySettings, StorageSettings

_ROLE_SESSION: Final = "calve"
_CONNECT_SECONDS_MAX: Final = 5
_ANSWER_SECONDS_MAX: Final = 30
_LOGIN_SECONDS_MAX: Final = 10
_LOGIN_ATTEMPTS_MAX: Final = 2


def aws_session(storage: StorageSettings) -> boto3.Session:
    secret = storage.secret_access_key
    session = boto3.Session(
        aws_access_key_id=storage.access_key_id,
        aws_secret_access_key=secret.reveal() if secret else None,
        aws_session_token=storage.properties.get("s3.session-token"),
        region_name=storage.region,
        profile_name=storage.profile,
    )
    return _in_role(session, storage.role_arn) if storage.role_arn else session


def signing_session(storage: StorageSettings) -> BotocoreSession:
    """The inner session, for libraries that sign requests themselves."""
    session = aws_session(storage)
    credentials_of(session, purpose="sign requests with")
    return session._session  # noqa: SLF001


def credentials_of(session: boto3.Session, *, purpose: str) -> Credentials:
    """The session's credentials, which a machine or a profile need not have."""
    credentials = session.get_credentials()
    if credentials is None:
        profile = session.profile_name
        raise Denied(
            f"there are no AWS credentials to {purpose}"
            + (f" in the profile {profile}" if profile != "default" else ""),
            hint="set storage.access_key_id and secret_access_key, or a storage.profile that has "
            "credentials; `aws sts get-caller-identity` shows whose are found",
        )
    return credentials


def client_config(retry: RetrySettings) -> Config:
    """Bounds for every request: AWS's own defaults wait for minutes."""
    return Config(
        connect_timeout=_CONNECT_SECONDS_MAX,
        read_timeout=_ANSWER_SECONDS_MAX,
        retries={"total_max_attempts": retry.max_attempts, "mode": "standard"},
    )


def _bounded(session: boto3.Session) -> None:
    """For the clients that a session makes itself, to assume a role: every request waits for it."""
    waits = Config(
        connect_timeout=_CONNECT_SECONDS_MAX,
        read_timeout=_LOGIN_SECONDS_MAX,
        retries={"total_max_attempts": _LOGIN_ATTEMPTS_MAX, "mode": "standard"},
    )
    session._session.set_default_client_config(waits)  # noqa: SLF001


def _in_role(session: boto3.Session, role_arn: str) -> boto3.Session:
    _bounded(session)
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=session._session.create_client,  # noqa: SLF001
        source_credentials=credentials_of(session, purpose=f"assume {role_arn} with"),
        role_arn=role_arn,
        extra_args={"RoleSessionName": _ROLE_SESSION},
    )
    inner = BotocoreSession()
    inner._credentials = DeferredRefreshableCredentials(  # noqa: SLF001
        refresh_using=fetcher.fetch_credentials, method="assume-role"
    )
    return boto3.Session(botocore_session=inner, region_name=session.region_name)
