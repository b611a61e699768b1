"""An asyncio service with a pool of worker processes, time limits, and workers that may die.

    python examples/service.py --port 8888        # then, in another terminal: nc localhost 8888
    python examples/service.py                    # or it talks to itself, and ends

The service answers lines: ``primes 100000`` counts the primes below a number, ``sleep 60`` takes
too long, ``crash`` kills the worker that gets it, an empty line ends the conversation.  Computing
happens in worker processes, one request at a time each.  The event loop never waits for one:
``shmpipe.aio.AsyncConnection`` sends and receives as tasks do.

A request that takes too long is given up and its worker ended, since nobody can tell when it will
be free again.  A worker that dies is end of file on its connection.  In both cases a new one takes
its place, and only that one request has failed.  Ctrl-C ends the service and all workers.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import time

import numpy as np

import shmpipe
from shmpipe.aio import AsyncConnection

MOST = 100_000_000  # a worker takes a byte for each number
LONGEST = 1 << 16  # bytes of a line

# --- in the workers ------------------------------------------------------------------------------


def primes(below):
    if below > MOST:
        raise ValueError(f"{below} is too much: at most {MOST}")
    below = max(below, 2)
    sieve = np.ones(below, bool)
    sieve[:2] = False
    for number in range(2, int(below**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = False
    return int(sieve.sum())


def answer(line):
    word, _, argument = line.partition(" ")
    try:
        if word == "primes":
            return str(primes(int(argument)))
        if word == "sleep":
            time.sleep(float(argument))
            return "slept well"
        if word == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
    except Exception as error:  # a request that makes no sense is no reason to die
        return f"error: {error or type(error).__name__}"
    return f"error: no such request: {word}"


def work(connection):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        for line in connection:  # until end of file
            connection.send(answer(line))


# --- in the service ------------------------------------------------------------------------------


class Worker:
    """A process, and the connection to it."""

    def __init__(self, context):
        ours, theirs = shmpipe.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # now only the worker has it: its death is an end of file for us
        self.connection = AsyncConnection(ours)

    async def ask(self, line):
        await self.connection.send(line)
        return await self.connection.recv()

    def end(self):
        self.connection.close()
        self.process.kill()
        self.process.join()


class Pool:
    """As many workers as there should be, whatever becomes of them."""

    def __init__(self, count, limit):
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["numpy", "shmpipe.aio"])
        self.limit = limit  # seconds for a request
        self.replaced = 0
        self.workers = {Worker(self.context) for _ in range(count)}
        self.idle: asyncio.Queue[Worker] = asyncio.Queue()
        for worker in self.workers:
            self.idle.put_nowait(worker)

    async def ask(self, line):
        """The answer.  TimeoutError: it took too long.  EOFError, BrokenPipeError: it died."""
        worker = await self.idle.get()
        try:
            return await asyncio.wait_for(worker.ask(line), self.limit)
        except BaseException:  # a cancelled request, too, leaves a worker that is busy with it
            self.workers.remove(worker)
            worker.end()
            worker = Worker(self.context)
            self.workers.add(worker)
            self.replaced += 1
            raise
        finally:
            self.idle.put_nowait(worker)

    def close(self):
        for worker in self.workers:
            worker.end()


async def serve(pool, reader, writer):
    """One client: a line each way, until it has no more."""
    try:
        while line := (await reader.readline()).decode(errors="replace").strip():
            try:
                text = await pool.ask(line)
            except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                text = "error: that took too long"
            except (EOFError, BrokenPipeError):
                text = "error: the worker has died"
            writer.write(f"{text}\n".encode())
            await writer.drain()
    except ConnectionError:  # the client has gone
        pass
    except ValueError:  # where its next line begins cannot be told
        writer.write(b"error: that line is too long\n")
    finally:
        writer.close()


async def client(port, lines):
    reader, writer = await asyncio.open_connection("localhost", port)
    answers = []
    for line in lines:
        writer.write(f"{line}\n".encode())
        answers.append((await reader.readline()).decode().strip())
    writer.close()
    await writer.wait_closed()
    return answers


async def demonstrate(port):
    """Three clients at once: what one of them does to its workers is nothing to the others."""
    print("answers by client:")
    for answers in await asyncio.gather(
        client(port, ["primes 1000", "crash", "primes 10000"]),
        client(port, ["sleep 60", "primes 100000"]),
        client(port, [f"primes {number}" for number in range(10, 100, 10)]),
    ):
        print(", ".join(answers))


async def run(options):
    pool, clients = Pool(options.workers, options.limit), set()

    def accept(reader, writer):
        task = asyncio.create_task(serve(pool, reader, writer))
        clients.add(task)
        task.add_done_callback(clients.discard)

    try:
        server = await asyncio.start_server(accept, "localhost", options.port or 0, limit=LONGEST)
        port = server.sockets[0].getsockname()[1]
        print(f"serving on port {port}", flush=True)
        if options.port is None:
            await demonstrate(port)
            print(f"{pool.replaced} workers were replaced")
        else:
            await asyncio.Event().wait()  # for ever
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        pool.close()


def main():
    parser = argparse.ArgumentParser(description="A service with a pool of processes.")
    parser.add_argument("--port", type=int, help="serve there until Ctrl-C; 0: on a free one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1, help="seconds for a request (default: 1)")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
