"""``python -m rlcore`` is the command ``rlcore``."""

from rlcore.cli import main

if __name__ == "__main__":
    main()
