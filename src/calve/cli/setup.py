"""`calve setup`: fetch what the installed parts need, once per user."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from calve.cli.options import Call, common_options
from calve.cli.output import print_json, say
from calve.errors import MissingPart
from calve.spark.conf import kinds_of
from calve.spark.jars import Jar, JarCache, needed_jars, spark_home


@click.command()
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when there is nothing to do.")
@common_options
def setup(call: Call, *, quiet: bool) -> None:
    """Fetch what the installed parts need, once; do nothing when it is all there.

    \b
    Example: calve setup
    """
    settings = call.settings()
    assert settings.cache is not None
    try:
        spark_home()
    except MissingPart as error:
        say(f"nothing to fetch: {error.message} ({error.hint})")
        _report(call, settings.cache, fetched=[])
        return
    cache = JarCache(settings.cache)
    ivy = settings.spark.conf.get("spark.jars.ivySettings")
    needed = needed_jars(kinds_of(settings))
    fetched = cache.missing(needed)
    for jar in fetched:
        _fetch(cache, jar, Path(ivy) if ivy else None)
    if not fetched and not quiet:
        say(f"all {len(needed)} jars are in {cache.directory}")
    _report(call, settings.cache, fetched=fetched)


def _fetch(cache: JarCache, jar: Jar, ivy_settings: Path | None) -> None:
    if cache.path(jar).exists():
        say(f"{cache.path(jar)} is damaged and is fetched again")
    label = f"{jar.file_name} ({jar.bytes / 1e6:.1f} MB)"
    with click.progressbar(length=jar.bytes, label=label, file=sys.stderr) as bar:
        cache.fetch(
            jar, ivy_settings=ivy_settings, progress=lambda size: bar.update(size - bar.pos)
        )
        bar.update(jar.bytes - bar.pos)


def _report(call: Call, cache: Path, *, fetched: list[Jar]) -> None:
    if call.as_json:
        print_json({"cache": str(cache), "fetched": [jar.file_name for jar in fetched]})
