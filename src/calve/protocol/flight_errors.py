"""What a Flight client of Arrow raises, as errors of Calve: the service's own, or its silence."""

from __future__ import annotations

import pyarrow as pa

from calve.errors import CalveError, Denied, Unavailable
from calve.protocol.problem import decoded, error_of


class Translating:
    """Whatever Arrow raises inside comes out as an error of Calve."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, pa.ArrowException | OSError):
            raise translated(error, self._url) from error


def _is_untrusted(said: str) -> bool:
    """gRPC tells of it in words only."""
    said = said.lower().replace("_", " ")
    return "certificate verify failed" in said or "is not in peer certificate" in said


def translated(error: BaseException, url: str) -> CalveError:
    """The service's own error, if it sent one; or what its silence means."""
    from pyarrow import flight

    problem = decoded(getattr(error, "extra_info", b""))
    if problem is not None:
        return error_of(problem)
    said = str(error).splitlines()[0]
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return Denied(f"{url} refuses: {said}", hint="give a token that may do this")
    if isinstance(error, flight.FlightTimedOutError):
        return Unavailable(f"{url} did not answer in time", hint="try again")
    if _is_untrusted(str(error)):
        return Denied(
            f"the certificate of {url} is not trusted, or is another name's",
            hint="ingest.tls_ca, or this machine, must have it or the authority's, and the "
            "address be one that it is made for",
        )
    if isinstance(error, flight.FlightUnavailableError):
        return Unavailable(
            f"no service answers at {url}",
            hint="start one with `calve up`, or give the address of one that runs. One that speaks "
            "TLS answers at grpc+tls:// alone, and may want a client's certificate",
        )
    return Unavailable(f"the connection to {url} failed: {said}", hint="try again")
