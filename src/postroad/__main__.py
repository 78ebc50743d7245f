"""Runs the command line as ``python -m postroad``."""

from postroad.cli import main

main()
