"""The classifier you keep: taught from folders or arrays, stored in a directory, undone, exported."""
