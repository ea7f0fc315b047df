"""Experiments: a recipe, a stream, a method; what happened, written down so that it can be repeated and resumed."""
