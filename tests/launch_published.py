"""Run a notebook as Colab and Binder find it: the published file, unchanged, in an environment
that lacks this package, from its first cell on, which installs it from GitHub.

    python tests/launch_published.py [CHAPTER] [--budget SECONDS] [--model NAME]

This checkout's last commit stands for GitHub: git takes the one address for the other, so nothing
in the notebook changes. What pip needs comes from PyPI. Exit code 1 if a cell failed, 2 for what
cannot be launched. Not part of `make test`, as it downloads torch.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from math import inf
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
JUPYTER = ("ipykernel", "papermill", "pip")  # what runs a notebook; the rest is its own affair


def instead_of(address: str, checkout: Path) -> dict[str, str]:
    """Settings, in the environment alone, with which git fetches `address` from `checkout`."""
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{checkout}.insteadOf",
        "GIT_CONFIG_VALUE_0": address,
    }


def launch(chapter: str, parameters: list[str], folder: Path) -> int:
    """Make the environment in `folder`, run the notebook there; papermill's exit code."""
    home = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "-U", *JUPYTER], check=True)
    kernel = [python, "-m", "ipykernel", "install", "--prefix", str(folder / "venv")]
    subprocess.run([*kernel, "--name", "python3"], check=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= instead_of(home, ROOT)
    environment["PATH"] = f"{folder / 'venv' / 'bin'}:{environment['PATH']}"
    notebook = ROOT / "notebooks" / f"{chapter}.ipynb"
    command = [python, "-m", "papermill", str(notebook), str(folder / "run.ipynb"), *parameters]
    return subprocess.run(
        [*command, "-k", "python3", "--log-output"], cwd=folder, env=environment, check=False
    ).returncode


def positive_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds; got {text!r}")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("chapter", nargs="?", default="kv_cache_is_exact")
    parser.add_argument(
        "--budget", type=positive_seconds, help="seconds to measure; the notebook's own otherwise"
    )
    parser.add_argument("--model", help="a smaller one, for a slow machine")
    options = parser.parse_args()
    chapters = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    if options.chapter not in chapters:  # before anything is downloaded
        parser.error(f"a chapter is one of {', '.join(chapters)}; got {options.chapter!r}")
    given = {"budget_s": options.budget, "model_name": options.model}
    parameters = [word for k, v in given.items() if v for word in ("-p", k, str(v))]
    try:
        with tempfile.TemporaryDirectory(prefix="launch-") as folder:
            return launch(options.chapter, parameters, Path(folder))
    except subprocess.CalledProcessError as error:
        print(f"no environment to launch in: {' '.join(error.cmd)} failed", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
