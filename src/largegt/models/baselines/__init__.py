"""The models people compare with, under the same training, evaluation and report as LargeGT."""
