"""The token of the host: for programs that can read the lake's own files anyway.

A service that needs tokens leaves one beside its announcement, readable for its user alone, which
is another one after each start. So `calve produce` and the like work on the host as before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from calve.paths import DataLayout
from calve.service.announcement import running_service

if TYPE_CHECKING:
    from pathlib import Path

    from calve.ingest import Intake
    from calve.settings import Settings


def leave_host_token(intake: Intake) -> Path | None:
    """Write it, if tokens are needed; where it is."""
    if not intake.doorkeeper.is_required:
        return None
    file = _file(intake.settings, intake.partition)
    unfinished = file.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(f"{intake.doorkeeper.host_secret}\n")
    unfinished.replace(file)
    return file


def host_token(settings: Settings, url: str) -> str | None:
    """That of the service of this lake, if the address is its own."""
    running = running_service(settings)
    if running is None:
        return None
    own, here = running.addresses, running.addresses.from_here()
    if url not in {own.flight, own.http, here.flight, here.http}:
        return None
    try:
        return _file(settings, settings.ingest.partition).read_text().strip() or None
    except OSError:
        return None  # it needs none, or it is somebody else's


def _file(settings: Settings, partition: int) -> Path:
    own = DataLayout(settings.data).service
    name = own.name if partition == 0 else f"{own.name}-{partition}"
    return own.with_name(f"{name}.token")
