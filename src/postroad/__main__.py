"""``python -m postroad``: the command line."""

from postroad.cli import main

if __name__ == "__main__":
    main()
