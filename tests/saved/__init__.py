"""Run and model directories written by released versions."""
