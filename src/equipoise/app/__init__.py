"""Models that users keep: teach them from folders or arrays, store, correct, undo and export them."""
