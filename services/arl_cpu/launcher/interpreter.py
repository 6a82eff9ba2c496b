"""Python source by the `python3` of the template, whose packages it shall see; it is read from a file descriptor."""

__all__ = ["COMMAND", "MISSING"]

_SOURCE_FD = 3
"""The one after standard error, as the agent gets it."""
MISSING = "this template has no python3 in its PATH, which `source` is run by; give `argv`, or use another template"

# For any Python 3. As `python main.py` would: the names, the search path, and tracebacks that begin in the source.
_START = f"""
def start():
    import linecache, os, sys
    with os.fdopen({_SOURCE_FD}, "rb") as file:
        text = file.read()
    def show(kind, error, trace):
        import traceback
        trace = trace.tb_next if trace else None
        traceback.print_exception(kind, error.with_traceback(trace), trace)
    sys.argv, sys.path[0], sys.excepthook = ["main.py"], os.getcwd(), show
    linecache.cache["main.py"] = (len(text), None, text.decode("utf-8", "replace").splitlines(True), "main.py")
    globals()["__file__"] = "main.py"
    del globals()["start"]
    return compile(text, "main.py", "exec", dont_inherit=True)
exec(start())
"""
COMMAND = ("python3", "-c", _START)
