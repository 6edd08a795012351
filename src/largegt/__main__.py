"""`python -m largegt` is the `largegt` command."""

from largegt.cli import main

main()
