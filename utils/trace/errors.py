"""What reading a trace can say: one error when it cannot be read whole, one warning when it was mended."""


class TraceError(ValueError):
    """A trace cannot be read, built or written; the message names the file and, where there is one, the byte."""


class TraceWarning(UserWarning):
    """A trace was read whole, but something in it had to be mended or deserves a second look."""
