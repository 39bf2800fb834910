"""A REST catalog: the reference implementation out of Iceberg's tests, over SQLite.

Its servlet is put into a Jetty by Jetty's own XML, not by `RESTCatalogServer`, because that
listens on every interface of the machine; this listens on loopback.
"""

from __future__ import annotations

import http.client
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from calve.spark.java import find_java
from tests.servers import process
from tests.servers.jars import class_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.servers.s3 import S3

_JETTY: Final = """\
<Configure id="server" class="org.eclipse.jetty.server.Server">
  <Call name="addConnector"><Arg>
    <New class="org.eclipse.jetty.server.ServerConnector">
      <Arg name="server"><Ref refid="server"/></Arg>
      <Set name="host">{host}</Set>
      <Set name="port">{port}</Set>
    </New>
  </Arg></Call>
  <Call id="catalog" class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">
    <Arg>rest_backend</Arg>
    <Arg><Map>
{properties}
    </Map></Arg>
    <Arg><New class="org.apache.hadoop.conf.Configuration"/></Arg>
  </Call>
  <Set name="handler">
    <New class="org.eclipse.jetty.ee10.servlet.ServletContextHandler">
      <Call name="addServlet">
        <Arg><New class="org.eclipse.jetty.ee10.servlet.ServletHolder">
          <Arg>
            <New class="org.apache.iceberg.rest.RESTCatalogServlet">
              <Arg><New class="org.apache.iceberg.rest.RESTCatalogAdapter">
                <Arg><Ref refid="catalog"/></Arg>
              </New></Arg>
            </New>
          </Arg>
        </New></Arg>
        <Arg>/*</Arg>
      </Call>
      <Call name="insertHandler"><Arg>
        <New class="org.eclipse.jetty.compression.server.CompressionHandler">
          <Call name="putCompression"><Arg>
            <New class="org.eclipse.jetty.compression.gzip.GzipCompression"/>
          </Arg></Call>
        </New>
      </Arg></Call>
    </New>
  </Set>
</Configure>
"""


@dataclass(frozen=True, slots=True)
class Rest:
    uri: str
    warehouse: str

    @property
    def port(self) -> int:
        return int(self.uri.rpartition(":")[2])


@contextmanager
def serve(s3: S3 | None = None) -> Iterator[Rest]:
    """With a local warehouse, or with one in `s3`."""
    jars = class_path("rest-catalog")
    java = find_java().executable
    directory = process.new_directory("rest")
    warehouse = f"s3://{s3.bucket}/rest" if s3 else (directory / "warehouse").as_uri()
    properties = _catalog_properties(directory, warehouse, s3)

    def launch(port: int) -> process.Launch:
        jetty = directory / "jetty.xml"
        jetty.write_text(_jetty(port, properties))
        return process.Launch(
            [
                *(java, "-Xmx512m", "-cp", jars),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-Dorg.eclipse.jetty.xml.XmlParser.Validating=false",  # It would want a DTD.
                *("org.eclipse.jetty.xml.XmlConfiguration", jetty),
            ]
        )

    with process.start("rest", launch, ready=_answers, directory=directory) as server:
        yield Rest(server.url, warehouse)


def _catalog_properties(directory: Path, warehouse: str, s3: S3 | None) -> dict[str, str]:
    database = directory / "catalog.db"
    return {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        # Nothing here has to survive a loss of power.
        "uri": f"jdbc:sqlite:{database}?journal_mode=WAL&synchronous=OFF&busy_timeout=30000",
        "jdbc.schema-version": "V1",
        "warehouse": warehouse,
        **({"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"} if s3 else {}),
        **(s3.file_io_properties if s3 else {}),
    }


def _jetty(port: int, properties: Mapping[str, str]) -> str:
    entries = "\n".join(
        f"      <Entry><Item>{escape(name)}</Item><Item>{escape(value)}</Item></Entry>"
        for name, value in properties.items()
    )
    return _JETTY.format(host=process.HOST, port=port, properties=entries)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(process.HOST, port, timeout=5)
    try:
        connection.request("GET", "/v1/config")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
