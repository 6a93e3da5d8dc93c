"""`python -m server` is the command `hexserve`."""

from server.commands.cli import main

if __name__ == "__main__":
    main()
