"""Looks up every pinned package in the public record of vulnerabilities, through pip-audit.

Fails on any finding. What could not be looked up is counted and said, never passed off as clean;
it does not fail, because a check must also run where that record cannot be reached.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "requirements.lock"
PATIENCE_S: Final = 300
UNREACHABLE: Final = re.compile(r"requests\.exceptions\.|ServiceError|network may be blocking")


@dataclass(frozen=True, slots=True)
class Vulnerability:
    package: str
    version: str
    identifier: str
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        fixed = ", ".join(self.fixed_in) or "no release so far"
        return f"{self.package} {self.version}: {self.identifier}, fixed in {fixed}"


@dataclass(frozen=True, slots=True)
class Audit:
    """What was looked up, what was found, and for each reason how many were not looked up."""

    audited: int
    vulnerabilities: tuple[Vulnerability, ...]
    skipped: Counter[str]


def main() -> int:
    try:
        process = run_pip_audit()
    except subprocess.TimeoutExpired:
        return show(nothing_audited(f"no answer within {PATIENCE_S} s"))
    if process.stdout.strip():
        return show(parse(process.stdout))
    if UNREACHABLE.search(process.stderr):
        return show(nothing_audited(process.stderr.strip().splitlines()[-1]))
    print(f"audit: pip-audit failed\n{process.stderr}", file=sys.stderr)
    return 1


def run_pip_audit() -> subprocess.CompletedProcess[str]:
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    return subprocess.run(
        [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def parse(report: str) -> Audit:
    dependencies: list[dict[str, Any]] = json.loads(report)["dependencies"]
    audited = [entry for entry in dependencies if "skip_reason" not in entry]
    reasons = (entry["skip_reason"] for entry in dependencies if "skip_reason" in entry)
    return Audit(
        audited=len(audited),
        vulnerabilities=tuple(found for entry in audited for found in vulnerabilities_of(entry)),
        skipped=Counter(without_package(reason) for reason in reasons),
    )


def vulnerabilities_of(entry: dict[str, Any]) -> list[Vulnerability]:
    return [
        Vulnerability(
            package=entry["name"],
            version=entry["version"],
            identifier=found["id"],
            fixed_in=tuple(found["fix_versions"]),
        )
        for found in entry["vulns"]
    ]


def without_package(reason: str) -> str:
    """pip-audit ends a reason with the package it is about; without it equal reasons are equal."""
    return re.sub(r": \S+ \(\S+\)$", "", reason)


def nothing_audited(reason: str) -> Audit:
    pinned = re.findall(r"^[A-Za-z0-9].*==", LOCK.read_text(), re.MULTILINE)
    return Audit(audited=0, vulnerabilities=(), skipped=Counter({reason: len(pinned)}))


def show(audit: Audit) -> int:
    for found in audit.vulnerabilities:
        print(f"audit: {found}")
    for reason, packages in audit.skipped.items():
        print(f"audit: {packages} packages NOT audited: {reason}")
    print(
        f"audit: {audit.audited} packages audited, {len(audit.vulnerabilities)} vulnerabilities "
        f"in them; {audit.skipped.total()} packages not audited"
    )
    return 1 if audit.vulnerabilities else 0


if __name__ == "__main__":
    sys.exit(main())
