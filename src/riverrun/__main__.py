"""``python -m riverrun``, for those whose shell does not find ``riverrun``."""

from riverrun.cli.__main__ import main

if __name__ == "__main__":
    main()
