"""Site address: where the built pages will stand, ending in a slash.

GitHub Pages serves OWNER/NAME at OWNER.github.io/NAME; a home elsewhere is named by html/baseurl
in _config.yml. A book that is built for a fork gets the fork's address.
"""

import re
from collections.abc import Mapping
from typing import Any

GITHUB = re.compile(r"https://github\.com/(?P<owner>[\w-]+)/(?P<name>[\w.-]+?)(?:\.git)?/?")


def site_address(config: Mapping[str, Any], home: str) -> str | None:
    """The address for a staged `config`; None where neither it nor the repository tells.

    `home` is the repository that the checkout names: where the staged one is another, it is a
    fork's, and the checkout's own baseurl does not hold."""
    repository = str(config["repository"]["url"])
    named = str((config.get("html") or {}).get("baseurl") or "")
    if named and repository == home:
        return named.rstrip("/") + "/"
    return pages_address(repository)


def pages_address(repository_url: str) -> str | None:
    """Where GitHub Pages serves a repository; None for one that lies elsewhere."""
    found = GITHUB.fullmatch(repository_url)
    if found is None:
        return None
    owner, name = found["owner"].lower(), found["name"]
    root = f"https://{owner}.github.io/"
    return root if name.lower() == f"{owner}.github.io" else f"{root}{name}/"
