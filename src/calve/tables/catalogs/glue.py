"""PyIceberg's Glue catalog over a bounded client of the session that the settings name."""

from __future__ import annotations

from pyiceberg.catalog import glue
from pyiceberg.catalog.glue import GLUE_CATALOG_ENDPOINT, GLUE_ID, GLUE_REGION, GlueCatalog

from calve.settings import Settings
from calve.tables.aws import aws_session, client_config
from calve.tables.commit_times import OrderedTimes


class _OrderedGlue(OrderedTimes, GlueCatalog):
    pass


def glue_catalog(settings: Settings, properties: dict[str, str]) -> GlueCatalog:
    endpoint = settings.catalog.uri.reveal() if settings.catalog.uri else None
    client = aws_session(settings.storage).client(
        "glue",
        region_name=properties.get(GLUE_REGION) or settings.storage.region,
        endpoint_url=endpoint or properties.get(GLUE_CATALOG_ENDPOINT),
        config=client_config(settings.retry),
    )
    if catalog_id := properties.get(GLUE_ID):
        glue._register_glue_catalog_id_with_glue_client(client, catalog_id)  # noqa: SLF001
    return _OrderedGlue(settings.catalog.name, client=client, **properties)
