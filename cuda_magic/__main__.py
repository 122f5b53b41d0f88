"""``python -m cuda_magic`` prints where the package lies (a local file of the same name shadows it)."""

import sys

from . import __version__
from .cli import main

if len(sys.argv) > 1:
    sys.exit(main())
print(f"cuda_magic {__version__} from {__file__}")  # noqa: T201
