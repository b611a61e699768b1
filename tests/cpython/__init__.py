"""CPython's own tests of multiprocessing and concurrent.futures, run with another Pipe in place.

They come from the `test` package of the interpreter that runs, where it has one. What is where:

* ``driver.py``: the process that runs the tests, with one start method and one Pipe
* ``place.py``: puts that Pipe in place
* ``runner.py``: starts it, watches it, reads what it reports
* ``selection.py``: which tests, and which not, each with its reason
* ``standins.py``: other Pipes, good and bad, that show what the runner notices

``python -m tests.cpython --help`` runs them by hand.
"""
