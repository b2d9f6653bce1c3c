"""`python -m culver.testing.chaos`: one run from the command line."""

from culver.testing.chaos.command import main

main()
