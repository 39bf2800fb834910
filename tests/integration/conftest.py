"""What integration tests share: a machine that offers no login to AWS."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def no_aws_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AWS's configuration is what the test writes to `config` and `credentials`."""
    for variable in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
