"""``python -m clustertune``: the command line, where its script is not on the PATH."""

from clustertune.cli import main

if __name__ == "__main__":
    main(prog_name="clustertune")
