"""``python -m riverrun.server``: one node, without the command line's library."""

import gc
import sys

gc.disable()  # until the node serves: modules are not garbage, and looking at them takes time

from riverrun.server.main import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
