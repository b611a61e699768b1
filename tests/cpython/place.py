"""Puts the Pipe that SHMPIPE_CPYTHON_PIPE names into the standard one's places, when imported."""

import functools
import importlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os

PIPE = os.environ["SHMPIPE_CPYTHON_PIPE"]
PLACES = (multiprocessing, multiprocessing.connection, multiprocessing.context.BaseContext)
pipes_made = 0


def put_in_place() -> None:
    if PIPE == "shmpipe":
        importlib.import_module("shmpipe.patch").install()
    elif PIPE != "stdlib":
        standin = getattr(importlib.import_module("standins"), PIPE)
        for place in PLACES:
            place.Pipe = standin
        # Looked up on a context it is a method.
        multiprocessing.context.BaseContext.Pipe = lambda self, *a, **k: standin(*a, **k)
    for place in PLACES:
        count_calls(place)


def count_calls(place) -> None:
    """Count the pipes, so that a run can show that it used them."""
    original = place.Pipe

    @functools.wraps(original)
    def counting(*args, **kwargs):
        global pipes_made
        pipes_made += 1
        return original(*args, **kwargs)

    place.Pipe = counting


put_in_place()
