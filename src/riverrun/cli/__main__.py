"""``python -m riverrun.cli``, the same as ``riverrun``."""

from __future__ import annotations

from riverrun.cli.main import main

if __name__ == "__main__":
    main()
