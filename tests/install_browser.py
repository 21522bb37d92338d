"""Make sure that the site's tests have a Chromium: the system's, Debian's or Playwright's own.

Run by `make test`. Prints what it did; exit code 1 with the way out if no browser could be had.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SYSTEM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """The path of a Chromium that Playwright can drive; None if there is none."""
    for name in SYSTEM_NAMES:
        if path := shutil.which(name):
            return path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).is_file() else None


def install_commands() -> list[list[list[str]]]:
    """Ways to get one, each a list of commands, in the order to try."""
    sudo = [] if os.name == "nt" or os.geteuid() == 0 else ["sudo", "-n"]
    ways = []
    if shutil.which("apt-get") and Path("/etc/debian_version").is_file():
        apt = [*sudo, "apt-get", "-qq"]
        ways.append([[*apt, "update"], [*apt, "install", "--yes", "chromium"]])
    ways.append([[sys.executable, "-m", "playwright", "install", "chromium"]])
    return ways


def main() -> int:
    if find_browser():
        return 0
    print("installing Chromium for the tests of the site", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for commands in install_commands():
        for command in commands:
            done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
            if done.returncode:
                break
        if find_browser():
            return 0
    print(
        "no Chromium could be installed; install one by hand (Debian: apt-get install chromium), "
        "then make test again",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
