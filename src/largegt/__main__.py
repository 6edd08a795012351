"""`python -m largegt` is the `largegt` command."""

from .cli import main

main()
