"""The parts of the fuzz harness: what is mutated, how a case is judged, and the workers that run cases."""
