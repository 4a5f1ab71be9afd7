"""The trainer as a child process: started, read, commanded, ended."""
