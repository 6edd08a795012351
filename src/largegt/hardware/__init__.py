"""Hardware abilities of this machine: probed once and cached."""
