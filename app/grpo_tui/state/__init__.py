"""All that is known of a run, in plain Python, changed by one event at a time."""
