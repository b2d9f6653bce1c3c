"""`python -m culver`: the same as the command `culver`."""

from culver.cli.main import main

if __name__ == "__main__":
    main()
