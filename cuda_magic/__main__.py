"""``python -m cuda_magic`` is ``cuda-magic``; alone it also prints where the package lies.

A local file of the same name shadows the package, and that line shows it.
"""

import sys
from pathlib import Path

from . import __version__
from .cli import main

if len(sys.argv) > 1:
    sys.exit(main())
print(f"cuda_magic {__version__} from {Path(__file__).parent}\n")  # noqa: T201
main(["--help"])
