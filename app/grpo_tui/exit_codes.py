"""How a process ended, in words and as the exit code that we pass on."""

import signal

BAD_INPUT = 2


def describe_exit(returncode: int) -> str:
    """`exit code 1`, or the name of the signal that ended the process."""
    number = signal_number(returncode)
    if number is None:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if name == "SIGKILL":
        return "killed by SIGKILL; unless somebody did that, the machine was out of memory"
    return f"killed by {name}"


def signal_number(returncode: int) -> int | None:
    """The signal that ended the process: reported by the system, or by the process as 128+n."""
    if returncode < 0:
        return -returncode
    return returncode - 128 if 128 < returncode < 160 else None


def shell_code(returncode: int) -> int:
    """The exit code that stands for `returncode`: 128+n for signal n."""
    return returncode if returncode >= 0 else 128 - returncode
