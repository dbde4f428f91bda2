"""`python -m m3agent` is the command line."""

from m3agent.cli.__main__ import main

if __name__ == "__main__":
    main()
