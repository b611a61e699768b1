"""Reinforcement learning: eight environments step in processes of their own, one policy each.

    python examples/environments.py --generations 40

The task is the pole on a cart, with the screen as part of every observation.  Each generation tries
as many policies as there are environments, at once: the learner sends an action to each and waits
for what all of them have seen, step by step.  The best policies' average makes the next generation
(the cross-entropy method).

The same loop runs over ``multiprocessing.Pipe`` first and over ``shmpipe.Pipe`` then: that is the
one line in which they differ.  Steps per second are printed for both.

Ctrl-C ends it.  So does an environment that dies: a step that is missing cannot be made up for.
"""

import argparse
import contextlib
import multiprocessing
import signal
import sys
import time

import numpy as np
from numpy.random import default_rng

import shmpipe

EPISODE = 200  # steps at most


class PoleOnCart:
    """A pole that falls over unless the cart under it is pushed the right way, every 20 ms."""

    def __init__(self, seed, screen):
        self.random = default_rng(seed)
        self.screen = np.zeros((screen, screen, 3), np.uint8)

    def reset(self):
        self.state = self.random.uniform(-0.05, 0.05, 4)
        self.steps = 0
        return self.observe()

    def step(self, action):
        _, speed, angle, turning = self.state
        force = 10.0 if action else -10.0
        sine, cosine = np.sin(angle), np.cos(angle)
        push = (force + 0.05 * turning**2 * sine) / 1.1
        twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        change = np.array([speed, push - 0.05 * twist * cosine / 1.1, turning, twist])
        self.state = self.state + 0.02 * change
        self.steps += 1
        fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        return self.observe(), 1.0, bool(fallen or self.steps == EPISODE)

    def observe(self):
        size = len(self.screen)
        column = int(np.clip((self.state[0] / 4.8 + 0.5) * size, 0, size - 1))
        self.screen[:] = 0
        self.screen[size // 2 :, column] = 255
        return {"state": self.state, "screen": self.screen}


def environment(connection, seed, screen):
    """One process: what comes is an action, or None for a new episode; until end of file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner's end is ours as well
    game = PoleOnCart(seed, screen)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            action = connection.recv()
            connection.send(game.reset() if action is None else game.step(action))


class Environments:
    """Many environments that are stepped together."""

    def __init__(self, count, make_pipe, context, screen):
        self.connections, self.processes = [], []
        for seed in range(count):
            ours, theirs = make_pipe()
            process = context.Process(target=environment, args=(theirs, seed, screen), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def ask(self, which, actions):
        """Send to all of ``which`` first, then receive from all: they compute at the same time."""
        try:
            for number, action in zip(which, actions, strict=True):
                self.connections[number].send(action)
            return [self.connections[number].recv() for number in which]
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise RuntimeError("an environment has died") from None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.join()


def play(environments, policies):
    """An episode with each policy, in an environment of its own: rewards, and steps made."""
    running = list(range(len(policies)))
    seen = environments.ask(running, [None] * len(running))
    rewards, steps = np.zeros(len(policies)), 0
    while running:
        pushes = [
            int(policies[number] @ observation["state"] > 0)
            for number, observation in zip(running, seen, strict=True)
        ]
        answers = environments.ask(running, pushes)
        steps += len(running)
        for number, (_, reward, _) in zip(running, answers, strict=True):
            rewards[number] += reward
        alive = [not over for _, _, over in answers]
        seen = [answer[0] for answer, on in zip(answers, alive, strict=True) if on]
        running = [number for number, on in zip(running, alive, strict=True) if on]
    return rewards, steps


def learn(environments, count, generations):
    """Returns the mean reward of the last generation, and steps per second."""
    random = default_rng(1)
    mean, spread = np.zeros(4), np.ones(4)
    steps, start, rewards = 0, time.perf_counter(), np.zeros(count)
    for _ in range(generations):
        policies = random.normal(mean, spread, (count, 4))
        rewards, made = play(environments, policies)
        steps += made
        best = policies[np.argsort(rewards)[-max(2, count // 4) :]]
        mean, spread = best.mean(axis=0), best.std(axis=0) + 0.1
    return rewards.mean(), steps / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description="Learn to balance a pole, in many environments.")
    parser.add_argument("--environments", type=int, default=8)
    parser.add_argument("--generations", type=int, default=10)
    parser.add_argument("--screen", type=int, default=84, help="pixels of a side (default: 84)")
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy.random", "shmpipe"])
    rates = {}
    for name, make_pipe in (
        ("multiprocessing.Pipe", context.Pipe),
        ("shmpipe.Pipe", shmpipe.Pipe),
    ):
        count = options.environments
        with Environments(count, make_pipe, context, options.screen) as environments:
            reward, rates[name] = learn(environments, count, options.generations)
        print(f"{name}: mean reward {reward:.0f}, {rates[name]:.0f} steps/s", flush=True)
    first, second = rates.values()
    print(f"{second / first:.2f} times as many")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except RuntimeError as error:
        sys.exit(str(error))
