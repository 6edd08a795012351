"""The machine that the library runs on."""
