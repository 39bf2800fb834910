"""Makes the environment that every other verb of the Makefile runs in; needs Python and Java only.

A second run finds its stamp, touches no network and changes nothing. An interrupted run leaves no
stamp, and the next one starts over. Started by setup.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
BIN: Final = VENV / "bin"
STAMP: Final = VENV / "calve-setup.stamp"
LOCK: Final = ROOT / "requirements.lock"
MADE_FROM: Final = (LOCK, ROOT / "pyproject.toml", Path(__file__))
MISSING_PART: Final = 3

# What says how to reach a package index may pass; any other setting of pip or uv that a user has
# for other work (a target directory, a constraint, another Python) would change what is made here.
TOOL_SETTING: Final = re.compile(r"PIP_|UV_")
REACHES_INDEX: Final = re.compile(
    r"PIP_(CACHE_DIR|CERT|CLIENT_CERT|CONFIG_FILE|DEFAULT_TIMEOUT|EXTRA_INDEX_URL|FIND_LINKS"
    r"|INDEX_URL|KEYRING_PROVIDER|NO_INDEX|PROXY|RETRIES|TIMEOUT|TRUSTED_HOST)$"
    r"|UV_(CACHE_DIR|CONCURRENT_\w+|CONFIG_FILE|DEFAULT_INDEX|EXTRA_INDEX_URL|FIND_LINKS"
    r"|HTTP_\w+|INDEX\w*|INSECURE_HOST|KEYRING_PROVIDER|LINK_MODE|NATIVE_TLS|NO_INDEX|OFFLINE"
    r"|SYSTEM_CERTS)$"
)
# An active virtual environment, and the variables of Python itself: a path that shadows our
# packages, a wish for no byte code.
OTHER_PYTHON: Final = re.compile(r"VIRTUAL_ENV|CONDA_PREFIX$|PYTHON|__PYVENV_LAUNCHER__$")


def main() -> int:
    require_java()
    if not is_current():
        with exclusive():
            if not is_current():
                build()
    compile_sources()
    return fetch_parts()


def require_java() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    from calve.errors import MissingPart
    from calve.spark.java import find_java

    try:
        find_java()
    except MissingPart as error:
        stop(str(error))


def is_current() -> bool:
    try:
        return STAMP.read_text() == fingerprint() and (BIN / "python").exists()
    except FileNotFoundError:
        return False


def fingerprint() -> str:
    """What the environment was made from. The path too: installed scripts hold it."""
    digest = hashlib.sha256(f"{ROOT}\0{python_line()}\0".encode())
    for path in MADE_FROM:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest() + "\n"


def python_line() -> str:
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """One builder at a time, where the platform has file locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    build_directory = ROOT / ".build"
    build_directory.mkdir(exist_ok=True)
    with (build_directory / "setup.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another setup to finish")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build() -> None:
    # Without a stamp nothing that looks installed can be trusted to be whole.
    start_over = not STAMP.exists() or is_foreign()
    STAMP.unlink(missing_ok=True)
    make_environment(start_over=start_over)
    install_uv()
    say("installing the pinned packages")
    run_uv("sync", "--require-hashes", "--compile-bytecode", str(LOCK))
    say("installing calve from this directory")
    run_uv("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(fingerprint())
    unfinished.replace(STAMP)


def make_environment(*, start_over: bool) -> None:
    say(f"making the environment .venv with Python {sys.version.split()[0]}")
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        stop(
            "this Python cannot make virtual environments\n"
            "hint: Debian, Ubuntu: sudo apt-get install python3-venv"
        )
    clear = ["--clear"] if start_over else []
    run([sys.executable, "-I", "-m", "venv", *clear, str(VENV)])


def is_foreign() -> bool:
    """Whether `.venv` belongs to another Python or another directory."""
    probe = "import sys; print(sys.prefix, sys.base_prefix, sys.version)"
    try:
        answer = subprocess.check_output([BIN / "python", "-I", "-c", probe], text=True)
    except (OSError, subprocess.CalledProcessError):
        return True
    return answer.strip() != f"{VENV} {sys.base_prefix} {sys.version}"


def install_uv() -> None:
    say("installing uv")
    with tempfile.TemporaryDirectory() as directory:
        pinned = Path(directory) / "uv.lock"
        pinned.write_text(pinned_block("uv"))
        options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
        run([str(BIN / "python"), "-m", "pip", "install", *options, "-r", str(pinned)])


def pinned_block(package: str) -> str:
    """The lines of the lock that pin one package: the requirement and its hashes."""
    block = re.search(rf"^{package}==.*\n(?:[ \t].*\n)*", LOCK.read_text(), re.MULTILINE)
    if block is None:
        stop(f"{LOCK.name} does not pin {package}\nhint: git checkout {LOCK.name}")
    return block.group()


def run_uv(verb: str, *arguments: str) -> None:
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    run([str(BIN / "uv"), "pip", verb, *quiet, *arguments, "--python", str(BIN / "python")])


def compile_sources() -> None:
    """Byte code of our own package, which an editable install leaves uncompiled.

    Only a gain in speed: a file that does not parse yet must not keep the linter from running.
    """
    command = [str(BIN / "python"), "-I", "-m", "compileall", "-qq", str(ROOT / "src")]
    subprocess.run(command, env=environment(), check=False)


def fetch_parts() -> int:
    return subprocess.run(
        [BIN / "calve", "setup", "--quiet"], env=environment(), check=False
    ).returncode


def run(command: list[str]) -> None:
    """Run a step. Its output goes to stderr: it is progress, or the reason of a failure."""
    outcome = subprocess.run(command, cwd=ROOT, env=environment(), stdout=sys.stderr, check=False)
    if outcome.returncode:
        stop(
            f"`{describe(command)}` failed; the reason is above\nhint: run make setup again",
            status=1,
        )


def describe(command: list[str]) -> str:
    words = [Path(command[0]).name, *(word for word in command[1:] if not word.startswith("-"))]
    return " ".join(words[:3])


def environment() -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if is_kept(name)}
    # uv does not read pip's settings; who reaches only a mirror has usually told pip alone.
    if "PIP_INDEX_URL" in kept and "UV_INDEX_URL" not in kept:
        kept.setdefault("UV_DEFAULT_INDEX", kept["PIP_INDEX_URL"])
    # Index settings in pip's own files stay in force, but never its wish for the user's directory.
    return kept | {"PIP_USER": "0"}


def is_kept(name: str) -> bool:
    if TOOL_SETTING.match(name):
        return REACHES_INDEX.match(name) is not None
    return OTHER_PYTHON.match(name) is None


def say(step: str) -> None:
    print(f"setup: {step}", file=sys.stderr, flush=True)


def stop(reason: str, *, status: int = MISSING_PART) -> NoReturn:
    say(reason)
    sys.exit(status)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        stop("interrupted\nhint: run make setup again", status=130)
