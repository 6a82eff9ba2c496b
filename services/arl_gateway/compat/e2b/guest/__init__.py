"""Programs that run inside a sandbox. They use only the standard library of Python 3.8 or later."""
