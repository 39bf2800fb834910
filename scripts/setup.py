"""Turns an old Python away in one line; a new enough one goes on with environment.py.

Two files, because an old Python cannot parse the other and would complain of its syntax instead.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - what runs this may be older than what it asks for
    sys.stderr.write(
        "setup: Python 3.11 or newer is needed; install one and name it: make PYTHON=python3.12\n"
    )
    sys.exit(3)

if __name__ == "__main__":
    import runpy
    from pathlib import Path

    # When a part is missing nothing is left behind, not even byte code.
    sys.dont_write_bytecode = True
    runpy.run_path(str(Path(__file__).with_name("environment.py")), run_name="__main__")
