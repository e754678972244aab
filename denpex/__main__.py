"""`python -m denpex` is the `denpex` command."""

import sys

from denpex.cli import main

sys.exit(main())
