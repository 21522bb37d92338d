"""The command as a module: python -m prefill_decode.cli."""

import sys

from prefill_decode.cli.command import main

sys.exit(main())
