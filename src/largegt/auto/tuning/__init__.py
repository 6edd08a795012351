"""Tuning: settings of a model searched on one store, judged by the validation split alone."""
