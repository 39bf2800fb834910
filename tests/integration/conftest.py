"""What integration tests share: a machine that offers no login to AWS, a service, and a
pipeline on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSettings
from tests.integration.serving import Serving, serving
from tests.integration.spark_site import FLAGS, SparkSite, spark_site


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


@pytest.fixture
def service(make_settings: MakeSettings) -> Iterator[Serving]:
    """A service on a free port, over a lake of its own."""
    with serving(make_settings(ingest__http_port=0, wal__free_bytes_min=0)) as service:
        yield service


@pytest.fixture
def both(make_settings: MakeSettings, spark_running: None) -> Iterator[SparkSite]:
    """A pipeline on Spark, and Spark's SQL beside it."""
    with spark_site(make_settings(**FLAGS)) as made:
        yield made
