"""``python -m riverrun.server``: run one node."""

import sys

from riverrun.server.main import main

sys.exit(main(sys.argv[1:]))
