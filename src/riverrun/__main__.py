"""``python -m riverrun``, for those whose shell does not find ``riverrun``."""

from riverrun.cli.main import main

if __name__ == "__main__":
    main()
