"""``python -m riverrun.cli``: the same as ``riverrun``."""

from riverrun.cli.main import main

main()
