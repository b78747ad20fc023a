"""``python -m riverrun.server``: one node, without the command line's library."""

import sys

from riverrun.server.main import main

sys.exit(main(sys.argv[1:]))
