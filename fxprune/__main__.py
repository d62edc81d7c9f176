"""``python -m fxprune``."""

import sys

from fxprune.cli import main

if __name__ == "__main__":
    sys.exit(main())
