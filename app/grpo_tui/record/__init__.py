"""Records of runs in SQLite, read without changing anything."""
