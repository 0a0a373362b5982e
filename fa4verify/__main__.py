"""`python -m fa4verify`: the command line, where nothing was installed."""

import sys

from fa4verify.cli import main

if __name__ == "__main__":
    sys.exit(main())
