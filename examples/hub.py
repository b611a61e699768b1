"""Many connections in one loop: sensors report to a hub that they find by its name.

    python examples/hub.py hub --name weather            # in one terminal
    python examples/hub.py sensors --name weather        # in as many others as you like
    python examples/hub.py                               # or all of it at once

The hub listens on a name (``shmpipe.listen``) and watches the listener and all connections with one
``selectors`` loop: who becomes readable is asked for what is there (``recv_many``), so a sensor
that stops in the middle keeps nobody waiting.  Sensors are not related to the hub: they connect by
its name, whichever is started first.

A sensor that ends, or is killed, is end of file on its connection.  Ctrl-C ends the hub, which then
prints what it has seen; the sensors see a broken pipe, and end as well.
"""

import argparse
import contextlib
import os
import random
import selectors
import subprocess
import sys
import time
from typing import Any

import shmpipe


class Summary:
    """Of the values of one sensor."""

    def __init__(self):
        self.count, self.sum, self.least, self.most = 0, 0.0, float("inf"), float("-inf")

    def add(self, value):
        self.count += 1
        self.sum += value
        self.least, self.most = min(self.least, value), max(self.most, value)

    def __str__(self):
        mean = self.sum / self.count
        return f"{self.count:6} values, {self.least:6.2f} to {self.most:6.2f}, mean {mean:6.2f}"


class Hub:
    """Takes connections and what comes on them, until it is told to stop."""

    def __init__(self, name):
        self.summaries = {}
        self.ended = 0
        self.selector = selectors.DefaultSelector()
        # Small messages only: 256 KiB of address space each would be a waste for hundreds of them.
        self.listener = shmpipe.listen(name, direction="receive", size=1 << 14, max_size=1 << 14)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)

    def run(self, until_ended=None):
        """Until so many sensors have ended; None: for ever."""
        while until_ended is None or self.ended < until_ended:
            for key, _ in self.selector.select():
                key.data(key.fileobj)

    def accept(self, listener):
        with contextlib.suppress(TimeoutError):  # whoever it was has gone again
            connection = listener.accept(timeout=0)
            self.selector.register(connection, selectors.EVENT_READ, self.receive)

    def receive(self, connection):
        try:
            # That it shows ready is no promise: then this is TimeoutError, and no harm done.
            messages = connection.recv_many(100, timeout=0)
        except TimeoutError:
            return
        except EOFError:
            self.selector.unregister(connection)
            connection.close()
            self.ended += 1
            return
        for sensor, value in messages:
            self.summaries.setdefault(sensor, Summary()).add(value)

    def close(self):
        for key in list(self.selector.get_map().values()):
            end: Any = key.fileobj  # a connection, or the listener
            end.close()
        self.selector.close()


def run_hub(options, until_ended=None):
    hub = Hub(options.name)
    print(f"listening on {hub.listener.path}", flush=True)
    try:
        hub.run(until_ended)
    except KeyboardInterrupt:
        print("stopped")
    finally:
        hub.close()
    for sensor, summary in sorted(hub.summaries.items()):
        print(f"{sensor:24} {summary}")
    print(f"{len(hub.summaries)} sensors", flush=True)


def run_sensors(options):
    """Several in one process, each with a connection of its own."""
    sensors = {
        f"{os.getpid()}/{number}": shmpipe.connect(
            options.name, wait=True, timeout=options.patience
        )
        for number in range(options.sensors)
    }
    temperatures = dict.fromkeys(sensors, 20.0)
    for _ in range(options.values):
        for sensor, connection in sensors.items():
            temperatures[sensor] += random.gauss(0, 0.1)
            connection.send((sensor, temperatures[sensor]))
        time.sleep(options.pause)
    for connection in sensors.values():
        connection.close()


def run_all(options):
    """A hub, and programs that know nothing but its name."""
    if options.name is None:
        options.name = f"hub-{os.getpid()}"
    command = [sys.executable, __file__, "sensors", "--name", options.name]
    for option in ("sensors", "values", "pause", "patience"):
        command += [f"--{option}", str(getattr(options, option))]
    programs = [subprocess.Popen(command) for _ in range(options.programs)]
    try:
        run_hub(options, options.programs * options.sensors)
    finally:
        for program in programs:
            program.wait()


def main():
    parser = argparse.ArgumentParser(description="Collect what many sensors measure.")
    parser.add_argument("role", nargs="?", choices=("hub", "sensors", "all"), default="all")
    parser.add_argument("--name", help="of the hub")
    parser.add_argument("--programs", type=int, default=3, help="programs with sensors, for 'all'")
    parser.add_argument("--sensors", type=int, default=20, help="sensors of a program")
    parser.add_argument("--values", type=int, default=50, help="values that each sensor reports")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two values")
    parser.add_argument("--patience", type=float, default=30, help="seconds to wait for a hub")
    options = parser.parse_args()
    if options.name is None and options.role != "all":
        parser.error("--name is missing")
    {"hub": run_hub, "sensors": run_sensors, "all": run_all}[options.role](options)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit("the hub has gone")
    except OSError as error:  # nobody, or somebody else, has the name; nobody came in time
        sys.exit(str(error))
