"""Files: folders of arrays under a manifest, atomic replacement, checksums, locks, and stores at URLs."""
