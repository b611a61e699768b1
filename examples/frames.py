"""A camera, two workers and a writer: frames that are never copied on their way.

    python examples/frames.py --frames 300 --fps 60 --out small.y4m

The camera draws each frame where it lies in the pipe to a worker (``reserve``).  The worker reads
it where it lies (``recv_view``), makes it four times smaller in each direction, and puts that
straight into its pipe to the writer.  The writer brings the workers' pictures back into order and
writes a film that video players know (Y4M, grey).

A camera does not wait: if a worker has no room for a frame, it is dropped, and counted.  With
``--fps 0`` the camera is as fast as the workers, and nothing is dropped.

Ctrl-C stops the camera; what it has taken until then still gets into the film.  If a worker dies,
the others go on, and only what it had is missing.
"""

import argparse
import heapq
import math
import multiprocessing
import signal
import sys
import time

import numpy as np

import shmpipe

SHRINK = 4


def frame_type(height, width):
    """A frame as it lies in the pipe: its number, when it was taken, its pixels."""
    return np.dtype([("number", "<u8"), ("taken", "<f8"), ("pixels", "u1", (height, width))])


# --- the camera ----------------------------------------------------------------------------------


def draw(memory, kind, number):
    """Take a picture, into the memory that was reserved for it."""
    frame = np.frombuffer(memory, kind)[0]  # a view: what is stored in it is in the pipe
    frame["number"] = number
    frame["taken"] = time.monotonic()
    height, width = frame["pixels"].shape
    frame["pixels"][:] = (np.arange(width) + 8 * number) % 256
    row = int((math.sin(number / 20) + 1) / 2 * (height - height // 4))
    frame["pixels"][row : row + height // 4, width // 3 : width // 2] = 255


def record(pipes, kind, count, fps):
    """Deal frames out to the workers, in turn; how many were dropped."""
    dropped, start = 0, time.monotonic()
    limit = 0 if fps else None  # seconds to wait for room
    for number in range(count):
        if fps:
            time.sleep(max(0, start + number / fps - time.monotonic()))
        pipe = pipes[number % len(pipes)]
        try:
            with pipe.reserve(kind.itemsize, timeout=limit) as memory:
                draw(memory, kind, number)
        except TimeoutError:
            dropped += 1
        except BrokenPipeError:  # this worker is dead
            dropped += 1
            pipes.remove(pipe)
            if not pipes:
                print("no worker is left", file=sys.stderr)
                break
    return dropped


# --- the workers ---------------------------------------------------------------------------------


def shrink(source, target, kind, small):
    """Average over squares of pixels; a function, so that no array outlives its loan."""
    frame, picture = np.frombuffer(source, kind)[0], np.frombuffer(target, small)[0]
    height, width = picture["pixels"].shape
    squares = frame["pixels"][: height * SHRINK, : width * SHRINK]
    squares = squares.reshape(height, SHRINK, width, SHRINK)
    picture["number"], picture["taken"] = frame["number"], frame["taken"]
    picture["pixels"][:] = squares.mean(axis=(1, 3), dtype=np.float32)


def work(frames, pictures, kind, small):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the camera; we end when it does
    try:
        while True:
            with frames.recv_view() as source, pictures.reserve(small.itemsize) as target:
                shrink(source, target, kind, small)
    except (EOFError, BrokenPipeError):  # the camera has finished, or the writer has died
        pass


# --- the writer ----------------------------------------------------------------------------------


def pictures_of(pipe, small):
    """(number, when it was taken, pixels) of each picture of one worker."""
    for data in iter_bytes(pipe):
        picture = np.frombuffer(data, small)[0]
        yield int(picture["number"]), float(picture["taken"]), picture["pixels"]


def iter_bytes(pipe):
    try:
        while True:
            yield pipe.recv_bytes()
    except EOFError:
        pass


def write(pipes, small, path, fps, report):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    height, width = small["pixels"].shape
    count, latency = 0, 0.0
    with open(path, "wb") as file:
        file.write(b"YUV4MPEG2 W%d H%d F%d:1 Cmono\n" % (width, height, fps or 30))
        # Each worker's numbers grow, so merging brings all into order, whatever is missing.
        ordered = heapq.merge(*(pictures_of(pipe, small) for pipe in pipes))
        for _, taken, pixels in ordered:
            file.write(b"FRAME\n")
            file.write(pixels)
            latency += time.monotonic() - taken
            count += 1
    report.send((count, latency / max(count, 1)))


# --- all of it -----------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description="Record a film with a pipeline of processes.")
    parser.add_argument("--frames", type=int, default=180, help="how many (default: 180)")
    parser.add_argument("--fps", type=int, default=60, help="frames a second; 0: as they are taken")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", default="small.y4m", help="the film (default: small.y4m)")
    options = parser.parse_args()
    kind = frame_type(options.height, options.width)
    small = frame_type(options.height // SHRINK, options.width // SHRINK)

    # Children of these start methods hold the ends they are given and no others: so end of file
    # comes, and a broken pipe is seen, as soon as the one process at the other end has gone.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy", "shmpipe"])
    to_workers, to_writer, children = [], [], []
    for _ in range(options.workers):
        source, camera_end = shmpipe.Pipe(duplex=False, size=4 * kind.itemsize)
        writer_end, target = shmpipe.Pipe(duplex=False, size=8 * small.itemsize)
        child = context.Process(target=work, args=(source, target, kind, small), daemon=True)
        child.start()
        source.close()
        target.close()
        to_workers.append(camera_end)
        to_writer.append(writer_end)
        children.append(child)
    report, report_end = shmpipe.Pipe(duplex=False)
    arguments = (to_writer, small, options.out, options.fps, report_end)
    writer = context.Process(target=write, args=arguments, daemon=True)
    writer.start()
    for end in (*to_writer, report_end):
        end.close()

    print("recording", flush=True)
    ends = list(to_workers)
    dropped, start = 0, time.monotonic()
    try:
        dropped = record(to_workers, kind, options.frames, options.fps)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    for end in ends:
        end.close()  # the workers see end of file, then the writer does
    try:
        count, latency = report.recv()
    except EOFError:
        sys.exit("the writer has died")
    seconds = time.monotonic() - start
    for child in (*children, writer):
        child.join()
    print(
        f"{count} frames in {options.out}, {dropped} dropped; {count / seconds:.0f} frames/s, "
        f"{count * kind.itemsize / seconds / 2**20:.0f} MiB/s, {latency * 1000:.1f} ms each"
    )
    died = [child for child in children if child.exitcode]
    sys.exit(f"{len(died)} of the workers died" if died else 0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
