"""Experiments: a recipe, a stream and a method, with results on disk so that runs can be repeated and resumed."""
