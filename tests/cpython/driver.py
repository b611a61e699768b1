"""Runs CPython's own tests of multiprocessing, with another Pipe in place of the standard one.

A script of its own, started by runner.py with these environment variables:

* SHMPIPE_CPYTHON_METHOD: the start method
* SHMPIPE_CPYTHON_PIPE: "stdlib", "shmpipe" (through `shmpipe.install()`), or the name of one in
  standins.py
* SHMPIPE_CPYTHON_REPORT: the file to append to, one JSON object a line

and the names ("Class.method") of the tests on stdin, one a line; none: only list what there is.

Children of the spawn and forkserver methods import the main script again, before they unpickle
anything. So everything here at the top level happens in them too, and a test that makes a pipe in
a child gets the same Pipe.
"""

import faulthandler
import functools
import importlib
import json
import os
import signal
import sys
import time
import unittest
import warnings

# Where place.py is; Python itself may have been told not to look beside a script.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))

METHOD = os.environ["SHMPIPE_CPYTHON_METHOD"]

# Some of the tests use SIGUSR1.
faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, all_threads=True)
# Before the tests, which bind Pipe when they are imported.
import place  # noqa: E402
from test import support  # noqa: E402
from test.support import script_helper  # noqa: E402

# Importing the tests makes a semaphore, to see whether that works. In a pool's worker that is
# terminated at this very moment it would stay for good.
support.skip_if_broken_multiprocessing_synchronize = lambda: None
from test import _test_multiprocessing  # noqa: E402

_test_multiprocessing.install_tests_in_module_dict(globals(), METHOD)


def put_in_place_in_programs() -> None:
    """Programs that tests hand to an interpreter of their own get the same Pipe."""
    original = script_helper.run_python_until_end
    # They ask not to see the environment's PYTHONPATH.
    beginning = f"import sys; sys.path[:] = {sys.path!r}; import place\n"

    @functools.wraps(original)
    def run(*args, **options):
        arguments = list(args)
        if "-c" in arguments:
            code = arguments.index("-c") + 1
            arguments[code] = beginning + arguments[code]
        return original(*arguments, **options)

    script_helper.run_python_until_end = run


class Result(unittest.TestResult):
    """Tells what happens when it happens: a test that hangs or kills the process has begun."""

    def __init__(self, report) -> None:
        super().__init__()
        self.report = report
        self.outcome = ("passed", "")
        self.began = 0.0
        self.pipes = 0

    def tell(self, **event) -> None:
        self.report.write(json.dumps(event) + "\n")
        self.report.flush()

    def startTest(self, test) -> None:
        super().startTest(test)
        self.outcome = ("passed", "")
        self.began = time.monotonic()
        self.pipes = place.pipes_made
        self.tell(began=name_of(test))

    def stopTest(self, test) -> None:
        super().stopTest(test)
        self.tell(
            test=name_of(test),
            outcome=self.outcome[0],
            detail=self.outcome[1],
            seconds=round(time.monotonic() - self.began, 3),
            pipes=place.pipes_made - self.pipes,
        )

    def failed(self, test, error) -> None:
        text = self._exc_info_to_string(error, test)
        if isinstance(test, unittest.TestCase):
            # A test can fail more than once: subtests, and its cleanups.
            before = self.outcome[1] if self.outcome[0] == "failed" else ""
            self.outcome = ("failed", before + text)
        else:  # setUpClass, tearDownModule, ...
            self.tell(outside=str(test), detail=text)

    def addError(self, test, error) -> None:
        self.failed(test, error)

    def addFailure(self, test, error) -> None:
        self.failed(test, error)

    def addSubTest(self, test, subtest, error) -> None:
        if error is not None:
            self.failed(test, error)

    def addUnexpectedSuccess(self, test) -> None:
        self.outcome = ("failed", "unexpected success")

    def addSkip(self, test, reason) -> None:
        if isinstance(test, unittest.TestCase):
            if self.outcome[0] == "passed":
                self.outcome = ("skipped", reason)
        else:
            self.tell(outside=str(test), detail=reason)


def name_of(test) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def all_modules() -> list:
    """Modules with tests in them: this one, and those of ProcessPoolExecutor where installed."""
    modules = [sys.modules["__main__"]]
    package = "test.test_concurrent_futures"
    try:
        modules.append(importlib.import_module(package))
    except ModuleNotFoundError:
        return modules
    for path in getattr(modules[-1], "__path__", []):  # a package since Python 3.12
        for name in sorted(os.listdir(path)):
            if name.startswith("test_") and name.endswith(".py"):
                modules.append(importlib.import_module(f"{package}.{name[:-3]}"))
    return modules


def all_tests() -> dict:
    loader = unittest.TestLoader()
    found = {}
    for module in all_modules():
        for value in list(vars(module).values()):
            if (
                isinstance(value, type)
                and issubclass(value, unittest.TestCase)
                and value.__module__ == module.__name__
                # The tests of executors are written out for each start method.
                and getattr(value, "ctx", METHOD) == METHOD
            ):
                for test in loader.loadTestsFromTestCase(value):
                    found[name_of(test)] = test
    return found


def main() -> None:
    wanted = sys.stdin.read().split()
    # What a shell starts in the background ignores it, and some of the tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A place from which nothing more comes, as in a run by a test system.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    put_in_place_in_programs()
    tests = all_tests()
    with open(os.environ["SHMPIPE_CPYTHON_REPORT"], "a") as report:
        result = Result(report)
        if not wanted:
            result.tell(tests=sorted(tests))
            return
        with warnings.catch_warnings():
            # Those of the tests themselves: forking beside threads, and the like.
            warnings.simplefilter("default")
            # unittest runs the fixtures of modules and classes if tests come class by class.
            unittest.TestSuite(tests[name] for name in wanted).run(result)
        result.tell(finished=True, altered=bool(support.environment_altered))


if __name__ == "__main__":
    main()
