"""`python -m fa4verify` is `fa4verify`."""

import sys

from fa4verify.cli import main

if __name__ == "__main__":
    sys.exit(main())
