"""The ingest process, as a supervisor starts it: `python -m calve.service.ingest`.

It takes rows in, and reports where it listens. Asked to end, it takes nothing more in and answers
what it has accepted.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from calve.ingest import Intake
from calve.parts import has_part
from calve.service.open_files import allow_open_files
from calve.service.orders import Report
from calve.service.process import Surroundings, run_process
from calve.service.serving import Serving

if TYPE_CHECKING:
    from calve.settings import Settings


_log: Final = logging.getLogger(__name__)


def main() -> int:
    return run_process(_serve)


def _serve(settings: Settings, surroundings: Surroundings) -> None:
    allow_open_files(settings.ingest)
    has_otlp = has_part("otlp")
    if not has_otlp:
        _log.info("no OpenTelemetry is taken in: `pip install 'calve[otlp]'` has it taken in, too")
    with Intake(settings) as intake, Serving(intake, otlp=has_otlp) as serving:
        surroundings.report(Report(addresses=serving.addresses))
        surroundings.ending.wait()


if __name__ == "__main__":
    sys.exit(main())
