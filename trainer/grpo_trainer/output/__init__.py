"""What leaves the trainer: events, console lines, the log file and the database."""
