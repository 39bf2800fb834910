"""`calve tls`: certificates for a service on a laptop or in a test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from calve.cli.options import Call, common_options
from calve.cli.output import print_json, say
from calve.clock import SystemClock
from calve.parts import load_part
from calve.paths import DataLayout

if TYPE_CHECKING:
    from calve.ingest.authority import Made, TlsFiles

_DAYS: Final = 365


@click.group()
def tls() -> None:
    """Make certificates for a laptop or a test."""


@tls.command()
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name or address of the service, beside loopback and `ingest.host`; again for more.",
)
@click.option(
    "--client",
    metavar="NAME",
    help="Make a certificate for a client of this name; the service's too, if it has none.",
)
@click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where they go; `_calve/tls` in the lake, if left out.",
)
@click.option("--days", default=_DAYS, type=click.IntRange(1, 3650), help="How long they hold.")
@click.option("--new-ca", is_flag=True, help="With --yes: replace the authority, too.")
@click.option("--yes", is_flag=True, help="Replace certificates that are there.")
@common_options
def init(
    call: Call,
    *,
    hosts: tuple[str, ...],
    client: str | None,
    directory: Path | None,
    days: int,
    new_ca: bool,
    yes: bool,
) -> None:
    """Make a certificate authority of your own, and a certificate for the service.

    Who trusts `ca.pem` trusts the service. With --yes the certificates are made anew by the
    authority that is there; a service that runs takes them within seconds. With --client NAME and
    without --host, the service keeps its certificate, and the client's are client-NAME.pem and
    client-NAME.key.

    \b
    Example: calve tls init --host lake.example.com
    Example: calve tls init --client billing
    """
    settings = call.load().settings
    authority = load_part("server", "calve.ingest.authority")
    place = directory.absolute() if directory else DataLayout(settings.data).tls
    files: TlsFiles = authority.TlsFiles(place)
    names = authority.names_for(settings.ingest.host, hosts)
    client_only = client is not None and not hosts
    made: Made = authority.init_tls(
        files,
        authority.Wanted(hosts=names, client=client, days=days, client_only=client_only),
        replace=yes,
        new_ca=new_ca,
        clock=SystemClock(),
    )
    pair = files.client(client) if client is not None else (None, None)
    if call.as_json:
        print_json(
            {
                "ca": files.ca,
                "cert": files.server[0],
                "key": files.server[1],
                "client_cert": pair[0],
                "client_key": pair[1],
                "hosts": names if made.has_server else None,
                "valid_until": made.until,
            }
        )
    else:
        click.echo(_settings(files, client))
    whom = ", ".join(names) if made.has_server else f"the client {client}"
    say(_words(files, whom, made.until.date().isoformat()))


def _settings(files: TlsFiles, client: str | None) -> str:
    """What to write into calve.toml."""
    keys = {"tls_cert": files.server[0], "tls_key": files.server[1], "tls_ca": files.ca}
    if client is not None:
        shown, key = files.client(client)
        keys |= {"tls_client_ca": files.ca, "tls_client_cert": shown, "tls_client_key": key}
    return "\n".join(["[ingest]", *(f'{key} = "{file}"' for key, file in keys.items())])


def _words(files: TlsFiles, whom: str, until: str) -> str:
    return f"""
Put this into calve.toml. The certificate is for {whom}, until {until}.
Clients trust the service by its authority; give them this file, and never a key:

  calve.Client("grpc+tls://HOST:8815", tls_root_certs=open("{files.ca}", "rb").read())
  curl --cacert {files.ca} https://HOST:8080/health/ready

Who has {files.ca_key} can pose as the service to all of them."""
