"""What this machine can do, tried and remembered."""
