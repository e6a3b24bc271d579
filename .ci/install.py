"""`python .ci/install.py ARGUMENT...` is `pip install ARGUMENT...` for this Python, done by uv where that works.

uv takes a third of pip's time, since it unpacks on all cores; it reads no pip.conf, so that it is told what is there.
"""

import ast
import os
import subprocess
import sys

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
TOLD = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
    "no-index": "UV_NO_INDEX",
    "proxy": "ALL_PROXY",
}
"""What pip calls a setting, and uv's variable for it."""


def told(settings: str) -> dict[str, str]:
    """Variables that tell uv what `pip config list` printed, a line for each setting."""
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):  # as pip does, what comes later is meant
        for line in settings.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(f"{section}.") and (variable := TOLD.get(name.removeprefix(f"{section}."))):
                joined = "," if variable == "UV_FIND_LINKS" else " "
                found[variable] = joined.join(ast.literal_eval(value).split())
    return found


def main(arguments: list[str]) -> None:
    """Install, and end as the installer does."""
    settings = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    # Of several indexes pip takes the best version wherever it is, uv that of the first index that has any.
    as_pip = {"UV_INDEX_STRATEGY": "unsafe-best-match", **told(settings), **os.environ}
    try:
        subprocess.run([*PIP, "install", "--quiet", "--constraint", "constraints.txt", "uv"], check=True)
        subprocess.run([sys.executable, "-m", "uv", "pip", "install", "--quiet", *arguments], check=True, env=as_pip)
    except subprocess.CalledProcessError:
        print("uv does not install it here: pip does", file=sys.stderr)
        subprocess.run([*PIP, "install", "--quiet", "--upgrade", "pip"])  # a Python's own is old and slow
        sys.exit(subprocess.run([*PIP, "install", "--quiet", "--no-compile", *arguments]).returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
