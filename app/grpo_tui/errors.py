"""Errors that end the command with one line for the person who gave it."""


class LaunchError(Exception):
    """The dashboard cannot start. The message is one line that says what to do."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
